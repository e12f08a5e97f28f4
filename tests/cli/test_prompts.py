"""Prompts of a model that has none, given once: `--query-prompt` and `--document-prompt`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sbert_search import Embedder, Index, SearchEngine
from tests.cli.process import sbert_search
from tests.models.test_bi_encoder import saved

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = ("--query-prompt", "red ", "--document-prompt", "the ")
GIVEN = {"query": "red ", "document": "the "}
TEXTS = {"1": "cat sat on a mat", "2": "dog ran far away"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path, prompts={"query": "dog "})


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    rows = [json.dumps({"_id": name, "text": text}) for name, text in TEXTS.items()]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "mat"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    return folder


def test_an_index_keeps_the_prompts_that_its_build_was_given(
    model: Path, docs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "i"
    done = sbert_search("index", "build", docs, "--out", out, "--model", model, *PROMPTS)
    assert done.code == 0, done.err
    index, plain = Index.open(out), Embedder(model, device="cpu")
    assert index.identity.prompts == GIVEN
    expected = plain.encode([f"the {text}" for text in TEXTS.values()], prompt="")
    stored = index.state.vectors(np.arange(2))
    assert np.allclose(stored, expected / np.linalg.norm(expected, axis=1, keepdims=True))
    (hit, _) = SearchEngine(index).search("mat", mode="dense")
    asked = plain.encode(["red mat"], prompt="")
    assert hit.score == pytest.approx(float(plain.similarity(asked, expected).max()), abs=1e-5)
    more = tmp_path / "more.jsonl"
    more.write_text('{"_id": "3", "text": "it slept in the sun"}\n')
    lines: list[tuple[object, ...]] = [
        ("search", out, "mat", "--device", "cpu"),
        ("search", out, "mat", "--device", "cpu", "--model", model),
        ("index", "add", out, more),
        ("eval", "retrieval", docs, "--index", out),
    ]
    for line in lines:
        done = sbert_search(*line)
        assert done.code == 0, done.err
    facts = sbert_search("index", "info", out).out.splitlines()
    (said,) = [fact.removeprefix("prompts ") for fact in facts if fact.startswith("prompts ")]
    assert json.loads(said) == GIVEN
    other = sbert_search("eval", "retrieval", docs, "--index", out, "--query-prompt", "blue ")
    assert (other.code, "prompts" in other.err) == (1, True)
    assert Index.open(out).identity.prompts == GIVEN


def test_a_prompt_of_the_model_can_be_left_out(model: Path, docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "i"
    done = sbert_search(
        "index", "build", docs, "--out", out, "--model", model, "--query-prompt", ""
    )
    assert done.code == 0, done.err
    assert Index.open(out).identity.prompts == {}
    assert SearchEngine(out).search("mat")


def test_a_synced_and_a_migrated_index_keep_them_too(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("cat")
    line = ("index", "sync", tmp_path / "i", folder)
    assert sbert_search(*line, "--model", model, *PROMPTS).code == 0
    (folder / "b.md").write_text("dog")
    done = sbert_search(*line)
    assert (done.code, "added 1" in done.out) == (0, True), done.err
    assert Index.open(tmp_path / "i").identity.prompts == GIVEN
    migrate = ("index", "migrate", tmp_path / "i")
    done = sbert_search(*migrate, "--model", model)
    assert done.code == 0, done.err
    assert Index.open(tmp_path / "i").identity.prompts == {"query": "dog "}
    assert sbert_search(*migrate, "--rollback").code == 0
    assert Index.open(tmp_path / "i").identity.prompts == GIVEN


def test_a_recipe_names_prompts_and_the_configuration_file_does_not_change_them(
    model: Path, docs: Path, tmp_path: Path
) -> None:
    text = f'corpus = "c"\nmodel = "{model}"\nprompts = {{query = "red "}}\n'
    (tmp_path / "r.toml").write_text(text)
    (tmp_path / "sbert-search.toml").write_text('[index.build]\nquery-prompt = "sun "\n')
    build = ("index", "build", docs, "--out")
    done = sbert_search(*build, "a", "--recipe", "r.toml", cwd=tmp_path)
    assert done.code == 0, done.err
    assert Index.open(tmp_path / "a").identity.prompts == {"query": "red "}
    done = sbert_search(*build, "b", "--model", model, cwd=tmp_path)
    assert done.code == 0, done.err
    assert Index.open(tmp_path / "b").identity.prompts == {"query": "sun "}


def test_models_without_prompts_refuse_them(docs: Path, tmp_path: Path) -> None:
    build = ("index", "build", docs, "--out", tmp_path / "i")
    done = sbert_search(*build, "--model", "hashing", *PROMPTS)
    assert (done.code, "'hashing' does not support prompts" in done.err) == (2, True)
    np.save(tmp_path / "v.npy", np.eye(2, dtype=np.float32))
    done = sbert_search(*build, "--vectors", tmp_path / "v.npy", *PROMPTS)
    assert (done.code, "prompts: no model is opened" in done.err) == (2, True)
