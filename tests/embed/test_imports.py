import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "sbert_search.embed.embedder",
        "sbert_search.embed.pipeline",
        "sbert_search.embed.hashing",
        "sbert_search.models.loading.folder",
        "sbert_search.models.loading.resolve",
        "sbert_search.search.rerankers",
    ],
)
def test_no_torch_is_loaded_before_a_model_is(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "loaded = {'torch', 'transformers', 'sentence_transformers', 'faiss'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
