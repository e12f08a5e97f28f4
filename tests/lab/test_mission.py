"""The mission's rows of analyses; see `tests/test_mission.py`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from sbert_search import Embedder, Index
from sbert_search.wings import installed
from tests.cli.process import sbert_search as run
from tests.cli.process import told
from tests.lab.variants.tiny import write_comparison
from tests.world import World

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def index(world: World) -> Index:
    """All documents, embedded by hashed words."""
    return world.index()


def test_anisotropy_is_measured_and_whitening_removes_it(world: World, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(
        "\n".join(dict.fromkeys(world.small.sentence(n, m) for n in range(4) for m in range(60)))
    )
    line = ("analyze", "anisotropy", world.model("bert"), texts, "--out", tmp_path / "out")
    (record,) = told(*line, "--save-whitened", tmp_path / "white", "--whitened-dim", 8)
    assert len(record["layers"]) == 3
    sentences = texts.read_text().splitlines()
    cosines = []
    for model in (world.model("bert"), tmp_path / "white"):
        vectors = Embedder(model, precision="fp32").encode(sentences, normalize_embeddings=True)
        cosines.append(abs(float((vectors @ vectors.T).mean())))
    assert cosines[1] < 0.2 * cosines[0]


def test_attention_is_that_of_transformers(world: World, tmp_path: Path) -> None:
    line = (
        "analyze",
        "attention",
        world.model("bert"),
        "the comet finds",
        "--out",
        tmp_path / "out",
    )
    first, *heads = told(*line)
    theirs = AutoModel.from_pretrained(world.model("bert"), attn_implementation="eager").eval()
    read = AutoTokenizer.from_pretrained(world.model("bert"))(
        "the comet finds", return_tensors="pt"
    )
    with torch.no_grad():
        expected = theirs(**read, output_attentions=True).attentions
    assert len(heads) == 4
    np.testing.assert_allclose(heads[3]["probabilities"], expected[1][0, 1].numpy(), atol=1e-4)
    assert (tmp_path / "out" / "attention.html").exists()
    assert first["tokens"][0] == "[CLS]"


@pytest.mark.thorough
def test_variants_of_encoders_are_compared_by_one_command(tmp_path: Path) -> None:
    classifier = "heads" in installed()
    recipe = write_comparison(tmp_path / "data", families=("bert",), classifier=classifier)
    line = ("analyze", "variants", recipe, "--data", tmp_path / "data", "--out", tmp_path / "out")
    told(*line, "--seeds", 1, "--device", "cpu")
    table = json.loads((tmp_path / "out" / "variants.json").read_text())
    assert "held-out MLM loss" in json.dumps(table)


def test_the_map_and_the_errors_are_written(world: World, index: Index, tmp_path: Path) -> None:
    told("analyze", "map", index.path, "--out", tmp_path / "map", "--clusters", 4)
    placed = json.loads((tmp_path / "map" / "map.json").read_text())
    assert "clusters" in placed
    assert (tmp_path / "map" / "map.html").stat().st_size > 10_000
    line = ("eval", "retrieval", world.folder / "beir", "--model", "hashing", "--no-cache")
    told(*line, "--out", tmp_path / "run")
    told("analyze", "errors", tmp_path / "run", "--out", tmp_path / "errors", "--worst", 3)
    assert sorted(path.suffix for path in (tmp_path / "errors").iterdir())[0] == ".html"


def test_its_names_and_commands_are_there() -> None:
    assert {"analyze_anisotropy", "map_index"} <= {*import_module("sbert_search").__all__}
    for command in ("analyze", "analyze map"):
        done = run(*command.split(), "--help")
        assert (done.code, f"sbert-search {command}" in done.out) == (0, True)
