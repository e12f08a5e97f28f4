"""No command writes over what it reads, whatever name it is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbert_search.cli.main import run
from sbert_search.index.index import Index

Names = Callable[[Path], list[Path]]


@pytest.fixture(autouse=True)
def hashing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SBERT_SEARCH_MODEL", "hashing")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of two documents."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "docs.txt").write_text("one text\nanother text\n")
    return Index.build(folder / "docs.txt", out=folder / "i", model="hashing").path


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    path = tmp_path / "queries.jsonl"
    path.write_text('{"_id": "q", "text": "text"}\n')
    return path


def names_of(file: Path) -> list[Path]:
    """Name a file, its link, its hard link, and spell it otherwise."""
    link, hard = file.with_name(f"link-{file.name}"), file.with_name(f"hard-{file.name}")
    link.symlink_to(file)
    os.link(file, hard)
    return [file, link, hard, Path(os.path.relpath(file)), file.parent / "." / file.name]


def contents(*roots: Path) -> dict[Path, bytes]:
    """Read all that is there, the lock of an index aside."""
    found = (file for root in roots for file in (root.rglob("*") if root.is_dir() else [root]))
    return {f: f.read_bytes() for f in found if f.is_file() and f.name != "LOCK"}


def assert_refused(
    capsys: pytest.CaptureFixture[str],
    *command: object,
    keeps: Path,
    why: str = "which is read",
) -> str:
    """Run a command that must do nothing and say why."""
    before = contents(keeps)
    assert run([str(word) for word in command]) == 2
    assert contents(keeps) == before
    said = capsys.readouterr().err
    assert why in said
    return said


def test_embed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    docs = tmp_path / "docs.parquet"
    pq.write_table(pa.table({"id": ["a"], "text": ["one"]}), docs)
    for out in names_of(docs):
        said = assert_refused(capsys, "embed", docs, "--out", out, keeps=tmp_path)
        assert f"would overwrite {out}" in said
    assert_refused(capsys, "embed", tmp_path / "d*.parquet", "--out", docs, keeps=tmp_path)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("a note")
    assert_refused(capsys, "embed", notes, "--out", notes / "a.md", keeps=tmp_path)
    assert run(["embed", str(notes), "--out", str(tmp_path / "new.parquet")]) == 0


def test_search(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, built: Path, queries: Path
) -> None:
    ask = ("search", built, "--queries", queries, "--run-out")
    for out in names_of(queries):
        assert_refused(capsys, *ask, out, keeps=tmp_path)
    for inside in ("MANIFEST.json", "seg/000000.vec.npy", "run.trec"):
        assert "lies in" in assert_refused(capsys, *ask, built / inside, keeps=built)
    assert run([str(word) for word in (*ask, tmp_path / "run.trec")]) == 0
    assert run([str(word) for word in (*ask, tmp_path / "no" / "run.trec")]) == 2
    assert "no is not a folder. Create it first" in capsys.readouterr().err


def test_tune(capsys: pytest.CaptureFixture[str], built: Path, queries: Path) -> None:
    ask = ("index", "tune", built, "--dry-run", "--queries", queries, "--svg")
    for out in names_of(queries):
        assert_refused(capsys, *ask, out, keeps=queries.parent)
    assert_refused(capsys, *ask, built / "MANIFEST.json", keeps=built)


def test_build_and_backup(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, built: Path, queries: Path
) -> None:
    for out in names_of(queries):
        build = ("index", "build", queries, "--out", out)
        assert_refused(capsys, *build, keeps=tmp_path, why="is a file")
    backup = ("index", "backup", built)
    assert_refused(capsys, *backup, built, keeps=built, why="exists already")
    for target in (built / "inner", built / "seg" / "inner"):
        assert_refused(capsys, *backup, target, keeps=built)


def test_eval_and_compare(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pairs, reports = tmp_path / "t.tsv", tmp_path / "reports"
    rows = [f"text {n}\ttext {n + n % 3}\t{n % 3}" for n in range(12)]
    pairs.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    reports.mkdir()
    evaluate = ("eval", "sts", pairs, "--out", reports)
    for report in ("sts.md", "t.json", "t.svg"):
        os.link(pairs, reports / report)
        assert report in assert_refused(capsys, *evaluate, keeps=tmp_path)
        (reports / report).unlink()
    assert run([str(word) for word in evaluate]) == 0
    record = reports / "t.json"
    compare = ("eval", "compare", record, record, "--draws", "100", "--svg", tmp_path / "gains")
    assert run([str(word) for word in compare]) == 0
    (picture,) = (tmp_path / "gains").iterdir()
    picture.unlink()
    picture.symlink_to(record)
    assert picture.name in assert_refused(capsys, *compare, keeps=tmp_path)
