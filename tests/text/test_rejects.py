"""The list of rejected rows: made whole, and never lost while it is read or after it was mended."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.base.files import use_disk
from sbert_search.errors import CorpusError, IndexStoreError
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.building.ingest import IngestReport
from sbert_search.index.building.settings import ReadSettings
from sbert_search.index.index import Index
from sbert_search.index.writer import IndexWriter
from sbert_search.text.formats.rows import Reject, RejectLog, is_reject_list
from tests.faults import FaultDisk, Killed

SKIP = ReadSettings(on_error="skip")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, *values: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """One document is in it, three rows were rejected."""
    blank = [{"_id": str(n), "text": ""} for n in range(3)]
    docs = write(tmp_path / "docs.jsonl", {"_id": "good", "text": "good"}, *blank)
    settings = BuildSettings(on_error="skip", lexical=None)
    return Index.build(docs, out=tmp_path / "i", model="hashing", settings=settings)


def listed(index: Index) -> Path:
    return index.path.with_name("i.rejects.jsonl")


def mended(*, still_blank: bool) -> list[dict[str, Any]]:
    last = {"_id": "2", "text": "" if still_blank else "mended"}
    return [{"_id": "0", "text": "mended"}, {"_id": "1", "text": "mended"}, last]


def counts(report: IngestReport) -> tuple[int, int]:
    return report.counts.indexed, report.counts.rejected


@pytest.mark.parametrize("mode", ["add", "upsert"])
@pytest.mark.parametrize("name", ["i.rejects.jsonl", "i.[r]ejects.jsonl", "link.jsonl"])
def test_rows_mended_in_place_are_read_whole_and_what_is_bad_stays_listed(
    index: Index, mode: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(listed(index), *mended(still_blank=True))
    path.with_name("link.jsonl").symlink_to(path)
    change = getattr(index, mode)
    assert counts(change(path.with_name(name), model="hashing", settings=SKIP)) == (2, 1)
    assert [(row["source"], row["value"]) for row in rows(path)] == [
        (f"{path.with_name(name if '[' not in name else path.name)}:3", "")
    ]
    old = path.with_name("i.rejects.old.jsonl")
    assert rows(old) == mended(still_blank=True)
    assert f"{path} was changed by hand; it is kept as {old}." in capsys.readouterr().err
    write(path, *mended(still_blank=False))
    assert counts(change(path, model="hashing", settings=SKIP)) == (1, 0)
    assert not path.exists()
    assert len(index) == 4


def test_rows_that_stop_the_work_leave_the_list_as_it_is(index: Index) -> None:
    path = write(listed(index), *mended(still_blank=True))
    before = path.read_bytes()
    with pytest.raises(CorpusError, match=r"i\.rejects\.jsonl:3: blank document"):
        index.add(path, model="hashing")
    assert path.read_bytes() == before


def test_other_work_replaces_a_list_and_keeps_one_that_was_changed(
    index: Index, tmp_path: Path
) -> None:
    other = write(tmp_path / "other.jsonl", {"_id": "x", "text": "x"})
    path, old = listed(index), tmp_path / "i.rejects.old.jsonl"
    assert len(rows(path)) == 3
    index.add(other, model="hashing")
    assert not path.exists()
    assert not old.exists()
    write(path, *mended(still_blank=False))
    index.add(other, model="hashing")
    assert rows(old) == mended(still_blank=False)


def test_a_build_from_the_list_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path / "i.rejects.jsonl", *mended(still_blank=True))
    settings = BuildSettings(on_error="skip", lexical=None)
    index = Index.build(path, out=tmp_path / "i", model="hashing", settings=settings)
    assert len(index) == 2
    assert [row["reason"][:14] for row in rows(path)] == ["blank document"]


def test_a_build_that_fails_at_its_end_goes_on_from_the_same_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "i.rejects.jsonl", *mended(still_blank=True))
    settings = BuildSettings(on_error="skip", lexical=None)
    with monkeypatch.context() as patch:
        patch.setattr(IndexWriter, "finish_build", fail)
        with pytest.raises(IndexStoreError):
            Index.build(path, out=tmp_path / "i", model="hashing", settings=settings)
    assert rows(path) == mended(still_blank=True)
    index = Index.build(path, out=tmp_path / "i", model="hashing", settings=settings)
    assert (len(index), len(rows(path))) == (2, 1)


def fail(*_: object, **__: object) -> None:
    raise IndexStoreError("the disk is full")


@pytest.mark.parametrize("given", ["texts", "vectors"])
def test_a_build_that_is_killed_as_it_ends_has_its_list(tmp_path: Path, given: str) -> None:
    docs = write(tmp_path / "docs.jsonl", {"_id": "good", "text": "good"}, {"_id": "", "text": "b"})

    def build(out: Path) -> None:
        if given == "texts":
            Index.build(docs, out=out, model="hashing:8", on_error="skip", lexical=None)
        else:
            Index.from_vectors(np.eye(2), ids=["good", ""], out=out, on_error="skip")

    build(tmp_path / "first")  # it caches what is measured of a model, which takes steps
    with use_disk(sound := FaultDisk(1_000_000, "kill")):
        build(tmp_path / "whole")
    for step in range(sound.steps - 12, sound.steps + 1):
        out = tmp_path / str(step)
        with use_disk(FaultDisk(step, "kill")), pytest.raises(Killed):
            build(out)
        with contextlib.suppress(IndexStoreError):  # the killed build had finished the index
            build(out)
        assert len(rows(tmp_path / f"{step}.rejects.jsonl")) == 1


def test_globs_and_folders_pass_over_lists_of_rejected_rows(
    index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = index.upsert(tmp_path / "*.jsonl", model="hashing", settings=SKIP)
    assert report.counts.read == 4
    assert "i.rejects.jsonl: skipped, a list of rejected rows" in capsys.readouterr().err
    (tmp_path / "docs.jsonl").unlink()
    (tmp_path / "note.md").write_text("a note")
    assert index.upsert(tmp_path, model="hashing").counts.read == 1


def test_a_list_goes_on_where_the_work_was_stopped(tmp_path: Path) -> None:
    bad = [Reject(f"f:{n}", "bad") for n in range(4)]
    path = tmp_path / "i.rejects.jsonl"
    first = RejectLog(tmp_path / "i")
    first.append(bad[:3])
    assert not path.exists()
    second = RejectLog(tmp_path / "i", keep=2)
    second.append(bad[3:])
    second.finish(was_read=False)
    assert [row["source"] for row in rows(path)] == ["f:0", "f:1", "f:3"]
    RejectLog(tmp_path / "i", keep=3).finish(was_read=False)
    assert [row["source"] for row in rows(path)] == ["f:0", "f:1", "f:3"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_folder_named_by_a_dot(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write(tmp_path / "other.jsonl", {"_id": "x", "text": "x"}, {"_id": "y", "text": ""})
    for here, dots in ((index.path, "."), (index.path / "seg", "..")):
        monkeypatch.chdir(here)
        report = Index.open(dots).upsert(other, model="hashing", settings=SKIP)
        assert report.rejects_file == listed(index)
        assert len(rows(listed(index))) == 1


def test_names_of_lists() -> None:
    assert is_reject_list(Path("a/i.rejects.jsonl"))
    assert is_reject_list(Path("i.x.rejects.old.jsonl"))
    assert not is_reject_list(Path("i.rejects/docs.jsonl"))
    assert not is_reject_list(Path("rejects.jsonl"))
