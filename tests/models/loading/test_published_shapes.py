"""The native encoder runs models of published shapes; models with Python code are refused.

The configurations are the published ones, written by hand, but for the number of layers and the
vocabulary, which make no difference here; the weights are random.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sbert_search import Embedder, Reranker
from sbert_search.errors import ModelError
from tests.parity.folders import bare, edit

_MODERNBERT: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_hidden_layers": 4,
    "reference_compile": False,
    "sparse_prediction": False,
}
_GRANITE = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
_BASE = {"hidden_size": 768, "num_attention_heads": 12}
_XLM_R: dict[str, Any] = {
    **_BASE,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "num_hidden_layers": 2,
    "position_embedding_type": "absolute",
    "type_vocab_size": 1,
    "use_cache": True,
}
_BERT: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
}
_MPNET = {**_XLM_R, "relative_attention_num_buckets": 32}
BI_ENCODERS = {
    "all-mpnet-base-v2": ("mpnet", _MPNET, "mean", 384),
    "granite-embedding-small-english-r2": ("modernbert", _MODERNBERT | _GRANITE, "cls", 8192),
    "gte-modernbert-base": (
        *("modernbert", {**_MODERNBERT, **_BASE, "intermediate_size": 1152}),
        *("cls", 8192),
    ),
    "multilingual-e5-base": ("xlm-roberta", _XLM_R, "mean", 512),
    "paraphrase-multilingual-MiniLM-L12-v2": ("bert", _BERT, "mean", 128),
    "snowflake-arctic-embed-s": ("bert", _BERT, "cls", 512),
}
PAIRS = {
    "bge-reranker-base": ("xlm-roberta", _XLM_R),
    "gte-reranker-modernbert-base": (
        *("modernbert", {**_MODERNBERT, **_BASE, "intermediate_size": 1152}),
    ),
    "ms-marco-MiniLM-L6-v2": ("bert", _BERT),
}


def listed(folder: Path, pooling: str, max_len: int, width: int) -> Path:
    """Write the files of sentence-transformers beside those of transformers."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    edit(folder / "1_Pooling", "config.json", word_embedding_dimension=width, **modes)
    limits = {"max_seq_length": max_len, "do_lower_case": False}
    return edit(folder, "sentence_bert_config.json", **limits)


@pytest.mark.parametrize("name", BI_ENCODERS)
def test_bi_encoders_of_published_shapes_are_native(tmp_path: Path, name: str) -> None:
    family, config, pooling, max_len = BI_ENCODERS[name]
    folder = listed(bare(tmp_path, family, **config), pooling, max_len, config["hidden_size"])
    opened = Embedder(folder, device="cpu", precision="fp32")
    assert opened.identity.engine == "native"
    assert opened.identity.pooling == pooling
    assert (opened.dim, opened.max_len) == (config["hidden_size"], max_len)
    assert opened.encode(["the cat"]).shape == (1, config["hidden_size"])


@pytest.mark.parametrize("name", PAIRS)
def test_rerankers_of_published_shapes_are_native(tmp_path: Path, name: str) -> None:
    family, config = PAIRS[name]
    labels = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    folder = bare(tmp_path, family, "ForSequenceClassification", **config, **labels)
    opened = Reranker(str(folder), device="cpu", precision="fp32")
    assert opened.identity.engine == "native"
    assert opened.predict([("the cat", "a cat")]).shape == (1,)


@pytest.mark.parametrize("opened", [Embedder, Reranker])
def test_a_model_with_code_of_its_own_is_refused(tmp_path: Path, opened: Any) -> None:
    folder = bare(tmp_path, "bert", "ForSequenceClassification", num_labels=1)
    code = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    code["AutoModelForSequenceClassification"] = "own.Model"
    edit(folder, "config.json", auto_map=code, model_type="new")
    edit(folder, "config.json", architectures=["NewForSequenceClassification"])
    (folder / "own.py").write_text("raise SystemExit('the code ran')")
    with pytest.raises(ModelError, match=r"needs Python code of its own \(auto_map in config"):
        opened(str(folder))
