"""Models that are a table of vectors, computed without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ModelError, WeightsError
from tests.models.tiny import TOKENS, tiny_static


def test_a_vector_is_the_mean_of_the_rows_of_the_tokens(tmp_path: Path) -> None:
    folder = tiny_static(tmp_path / "m", prompts={"query": "the "})
    embedder = Embedder(folder)
    assert embedder.identity.engine == "static"
    table = load_file(folder / "model.safetensors")["embedding.weight"]
    the, cat, sat = (table[TOKENS.index(word)] for word in ("the", "cat", "sat"))
    vectors = embedder.encode(["cat cat sat", "", "The cat"])
    np.testing.assert_allclose(vectors[0], (2 * cat + sat) / 3, rtol=1e-6)
    np.testing.assert_array_equal(vectors[1], np.zeros(16))  # no token
    np.testing.assert_allclose(vectors[2], (the + cat) / 2, rtol=1e-6)
    np.testing.assert_array_equal(embedder.encode_query(["cat"])[0], vectors[2])  # by the prompt


def test_a_long_text_is_read_whole_unless_tokenizer_json_states_a_limit(tmp_path: Path) -> None:
    folder = tiny_static(tmp_path / "m")
    assert not Embedder(folder).tokenize(["cat " * 5000]).lost.any()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    limits = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    tokenizer["truncation"] = limits
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    tokens = Embedder(folder).tokenize(["cat cat sat mat mat on it"])
    assert (tokens.lengths[0], tokens.lost[0]) == (5, 2)
    limits["max_length"] = 1  # no special tokens need room
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert Embedder(folder).tokenize(["cat cat sat"]).lengths[0] == 1


def test_torch_is_not_loaded(tmp_path: Path) -> None:
    folder = tiny_static(tmp_path / "m")
    script = (
        "import sys; from sbert_search import Embedder; "
        f"print(Embedder({str(folder)!r}).encode(['a cat']).shape, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "(1, 16) False\n", done.stderr


def test_other_options_than_those_of_a_table_need_the_library(tmp_path: Path) -> None:
    folder = tiny_static(tmp_path / "m")
    exact = Embedder(folder).encode(["a cat"])
    other = Embedder(folder, device="cpu", engine="sentence-transformers")
    assert other.identity.engine == "sentence-transformers"
    np.testing.assert_allclose(other.encode(["a cat"]), exact, atol=1e-6)
    assert not Embedder(folder).identity.differences(other.identity)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = tiny_static(tmp_path / "m")
    file = folder / "model.safetensors"
    table = load_file(file)["embedding.weight"]
    save_file({"embedding.weight": table[:-1].copy()}, file)
    with pytest.raises(WeightsError, match=r"has \d+ embeddings for \d+ tokens"):
        Embedder(folder)
    n = len(table)
    for mapping in (np.arange(n) + 1, np.arange(n) - 1, np.ones(n)):
        save_file({"embeddings": table, "mapping": mapping}, file)
        with pytest.raises(WeightsError, match="or numbers of no row"):
            Embedder(folder)
    save_file({"other": table}, file)
    with pytest.raises(WeightsError, match="no table of embeddings"):
        Embedder(folder)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged"):
        Embedder(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Embedder(folder)
