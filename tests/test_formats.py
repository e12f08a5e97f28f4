"""What earlier versions wrote still opens, answers as it did then, and can be gone on with.

`tests/formats/make.py` wrote the files with the code of those versions and recorded the answers.
Those of hybrid search were recorded again when fused scores got a fixed scale.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from sbert_search import Index, SearchOptions
from tests.formats import make

pytestmark = pytest.mark.usefixtures("one_thread")

HERE = Path(make.__file__).parent
VERSIONS = {"e5b44cf": 1, "4fd10fa": 2, "5b46374": 3}
"""Folders, and the format version of their indexes."""

NEW = {"_id": "dóc 零", "text": "A new red mill, far from all rivers.", "kind": "mill"}
TYPED = {
    "year": 1999,
    "weight": 2.5,
    "open": True,
    "seen": "2024-02-29T01:02:03.000004Z",
    "born": "1999-12-31",
    "tags": ["red"],
}
Expected = dict[str, Any]


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a version's files that the test may change."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / request.param))


@pytest.fixture
def expected(folder: Path) -> Expected:
    """What the files answered when they were written."""
    answers: Expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return answers


def test_every_version_has_its_files() -> None:
    assert sorted(path.parent.name for path in HERE.glob("*/expected.json")) == sorted(VERSIONS)
    for version, number in VERSIONS.items():
        assert make.manifest_of(HERE / version / "words")["version"] == number


def test_searches_find_what_they_found(folder: Path, expected: Expected) -> None:
    found = make.found(folder)
    nearness = {"words": 1e-6, "passages": 1e-5}  # a model's sums differ a little by processor
    assert found.keys() == expected["found"].keys()
    for asked, then in expected["found"].items():
        now, near = found[asked], nearness[asked.partition(",")[0]]
        assert now["scores"] == pytest.approx(then["scores"], rel=0, abs=near), asked
        assert above_the_last(now) == pytest.approx(above_the_last(then), rel=0, abs=near), asked


def above_the_last(hits: dict[str, list[Any]]) -> dict[str, float]:
    """Hits of clearly more than the last one's score; equal ones may change places."""
    clear = hits["scores"][-1] + 1e-4
    scored = zip(hits["ids"], hits["scores"], strict=True)
    return {doc_id: score for doc_id, score in scored if score > clear}


@pytest.mark.parametrize("name", make.FILTERS)
def test_an_index_is_sound_and_can_be_changed(
    folder: Path, expected: Expected, tmp_path: Path, name: str
) -> None:
    path = folder / name
    before = make.documents(path)
    assert make.digest(before) == expected["documents"][name]
    new = NEW | (TYPED if name == "words" else {"text": NEW["text"] * 9})
    (tmp_path / "new.jsonl").write_text(json.dumps(new), encoding="utf-8")
    model = None if name == "words" else make.open_bi_encoder(folder)

    index = Index.open(path)
    assert index.check().problems == ()
    index.upsert(tmp_path / "new.jsonl", model=model)
    assert index.delete(where="kind = 'river'") > 1
    index.compact()
    assert index.check().problems == ()
    after = make.documents(path)
    kept = {i: row for i, row in before.items() if "('kind', 'river')" not in row}
    assert after.pop("dóc 零") != kept.pop("dóc 零")
    assert after == kept
    engine = make.open_engine(path)
    options = SearchOptions(k=1, mode="lexical", where="kind = 'mill'", full_text=True)
    (hit,) = engine.search("far rivers", options=options)
    assert (hit.doc_id, hit.text) == (new["_id"], new["text"])


def test_models_compute_what_they_computed(folder: Path, expected: Expected) -> None:
    then = expected["embeddings"]
    assert make.embeddings(folder) == [pytest.approx(vector, rel=0, abs=1e-5) for vector in then]
    assert make.scores(folder) == pytest.approx(expected["scores"], rel=0, abs=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", make.RUNS)
def test_an_interrupted_run_comes_to_its_end(
    folder: Path, expected: Expected, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    then = expected["runs"][name]
    now = make.resumed(folder, name, "--allow-inexact")
    differing = re.findall(r"(\S+) was (?!made)", capsys.readouterr().err)
    assert [name for name in differing if not name.startswith("versions.")] == []
    assert now["losses"] == pytest.approx(then["losses"], abs=0.01)
    assert now["figures"] == pytest.approx(then["figures"], abs=0.02)
