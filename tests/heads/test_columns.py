"""Columns that models fill: at the build, in updates, in filters, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

import pytest

from sbert_search.errors import ConfigError, ModelMismatch
from sbert_search.heads.predicted import PredictedColumns
from sbert_search.heads.predictor import Predictor
from sbert_search.index.index import Index
from sbert_search.records import Document
from sbert_search.search.engine import SearchEngine
from tests.cli.process import sbert_search
from tests.models.tiny import WORDS, tiny_classifier, tiny_tagger

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [f"the {a} {b} on {c}" for a, b, c in zip(WORDS, WORDS[3:], WORDS[5:], strict=False)]
ROWS = [{"_id": str(n), "text": text, "n": n} for n, text in enumerate(TEXTS)]


class BuildPlace(TypedDict):
    out: Path
    model: str


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    tiny_classifier(tmp_path / "tokens").save(tmp_path / "classifier")
    tiny_tagger(tmp_path / "tokens").save(tmp_path / "tagger")
    return tmp_path / "classifier", tmp_path / "tagger"


def test_columns_at_the_build_in_updates_and_in_filters(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    classes = Predictor(models[0], precision="fp32").classify(TEXTS)
    found = Predictor(models[1], precision="fp32").tag(TEXTS)
    index = Index.build(
        ROWS[:6],
        out=tmp_path / "my.index",
        model="hashing",
        classify={"mood": str(models[0])},
        tag={"names": str(models[1])},
    )
    again = Index.open(tmp_path / "my.index")
    report = again.add(ROWS)  # the first rows are duplicates, although they lack the columns
    assert (report.counts.duplicate, report.counts.indexed) == (6, len(ROWS) - 6)
    assert again.upsert([ROWS[0] | {"text": TEXTS[1]}]).counts.replaced == 1
    index.refresh()
    for n, row in enumerate(ROWS):
        document = index.get(str(n))
        assert document is not None
        at = 1 if n == 0 else n
        texts = list(dict.fromkeys(entity.text for entity in found[at].entities))
        people = [e.text for e in found[at].entities if e.label == "per"]
        assert document.metadata["mood"] == classes[at].label
        assert (document.metadata.get("names") or []) == texts
        assert (document.metadata.get("names_per") or []) == list(dict.fromkeys(people))
        assert document.metadata["n"] == row["n"]
    named = next(e.text for own in found[1:] for e in own.entities)
    hits = SearchEngine(index).search("the", len(ROWS), where=f"'{named}' IN names")
    assert hits
    assert all(named in hit.text for hit in hits)


def test_the_command_builds_and_the_filter_finds(models: tuple[Path, Path], tmp_path: Path) -> None:
    source = tmp_path / "d.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    out = tmp_path / "my.index"
    built = sbert_search(
        *("index", "build", source, "--out", out, "--model", "hashing"),
        *("--classify", f"{models[0]}=mood", "--tag", f"{models[1]}=names"),
    )
    assert built.code == 0, built.err
    moods = {
        hit["metadata"]["mood"] for hit in sbert_search("search", out, "the", "--json").records
    }
    assert moods <= {"no", "maybe", "yes"}
    mood = min(moods)
    found = sbert_search("search", out, "the", "--where", f"mood = '{mood}'", "--json").records
    assert {hit["metadata"]["mood"] for hit in found} == {mood}
    again = sbert_search("index", "add", out, source, "--json").records
    assert again[0]["duplicate"] == len(ROWS)
    bad = sbert_search("index", "build", source, "--out", tmp_path / "x", "--tag", "names")
    assert (bad.code, "--tag 'names' is not MODEL=COLUMN" in bad.err) == (2, True)
    twice = ("--classify", f"{models[0]}=mood", "--classify", f"{models[1]}=mood")
    bad = sbert_search("index", "build", source, "--out", tmp_path / "x", *twice)
    assert (bad.code, "--classify has two models for the column 'mood'" in bad.err) == (2, True)


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        (("O", "PER", "LOC"), {"names", "names_LOC", "names_PER"}),
        (("O", "I-PER", "I-LOC"), {"names", "names_LOC", "names_PER"}),
        (("NN", "-LRB-", "VB"), {"names", "names_LRB_", "names_NN", "names_VB"}),
    ],
)
def test_tags_that_mark_no_entities_have_columns(
    tmp_path: Path, labels: tuple[str, ...], columns: set[str]
) -> None:
    tiny_tagger(tmp_path / "tokens", labels).save(tmp_path / "tagger")
    (document,) = PredictedColumns({}, {"names": str(tmp_path / "tagger")}, {}).documents(
        [Document("1", TEXTS[0])]
    )
    (found,) = Predictor(tmp_path / "tagger").tag([TEXTS[0]])
    expected = [one.text for one in found.entities if one.label != "O"]
    assert document.metadata.keys() <= columns
    assert document.metadata.get("names", []) == list(dict.fromkeys(expected))


def test_wrong_models_and_columns_are_refused(models: tuple[Path, Path], tmp_path: Path) -> None:
    build: BuildPlace = {"out": tmp_path / "a.index", "model": "hashing"}
    with pytest.raises(ConfigError, match="is a model for tag, not for classify"):
        Index.build(ROWS, classify={"mood": str(models[1])}, **build)
    with pytest.raises(ConfigError, match="The sources have a column 'n', which a model is to"):
        Index.build(ROWS, classify={"n": str(models[0])}, **build)
    with pytest.raises(ConfigError, match="Two models fill the column 'x'"):
        PredictedColumns({"x": "a"}, {"x": "b"}, {})
    with pytest.raises(ConfigError, match="Two models fill the column 'x_per'"):
        Index.build(ROWS, classify={"x_per": str(models[0])}, tag={"x": str(models[1])}, **build)
    assert not (tmp_path / "a.index").exists()
    index = Index.build(ROWS[:3], classify={"mood": str(models[0])}, **build)
    other = tiny_classifier(tmp_path / "tokens")
    other.out.bias.data += 1
    for file in models[0].iterdir():
        file.unlink()
    models[0].rmdir()
    other.save(models[0])
    with pytest.raises(ModelMismatch, match="its weights have changed"):
        index.add(ROWS)
    assert len(index) == 3
