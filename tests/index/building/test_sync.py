"""An index kept in sync with a folder of files."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbert_search.embed.engines.protocol import SELF_CHECK_TEXTS
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ConfigError, CorpusError, IndexLocked, IndexStoreError
from sbert_search.index.building import ingest
from sbert_search.index.building.sync import KNOWN, TAKEN, SyncReport
from sbert_search.index.index import Index
from sbert_search.records import RowCounts
from sbert_search.text.documents import FieldNames
from tests.index.building.test_ingest import stop_after
from tests.index.building.test_model_check import SameEngine
from tests.index.building.test_updates import UNOPENED, passages
from tests.text.formats.test_pdf import make_pdf

Write = Callable[..., None]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    write(
        folder, {"README.md": "# Notes", "a.md": "moon", "sub/README.md": "sub", "sub/b.txt": "b"}
    )
    return folder


def write(folder: Path, files: dict[str, str | None]) -> None:
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def build(notes: Path) -> Index:
    return Index.build(notes, out=notes.with_name("index"), model="hashing")


def texts(index: Index) -> dict[str, str]:
    found = {document.doc_id: document.text for document in index}
    assert len(found) == len(index)
    return found


def sync(
    index: Index,
    folder: Path,
    *,
    dry_run: bool = False,
    allow_empty: bool = False,
    moved: bool = False,
) -> SyncReport:
    return index.sync(
        folder, model=HashingEmbedder(), dry_run=dry_run, allow_empty=allow_empty, moved=moved
    )


def done(report: SyncReport) -> tuple[set[str], set[str], set[str], int]:
    return {*report.added}, {*report.replaced}, {*report.deleted}, report.unchanged


@pytest.mark.parametrize(
    "wrong", [{"on_error": "stop"}, {"fields": FieldNames()}, {"query": "x"}, {"text_as": "lines"}]
)
def test_settings_that_a_sync_does_not_use_are_refused(notes: Path, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}: a sync reads each file"):
        build(notes).sync(notes, **wrong)


CHANGES: dict[str, str | None] = {"new/n.md": "new", "a.md": "sun", "sub/b.txt": None}


def test_a_sync_adds_replaces_and_deletes(notes: Path) -> None:
    index = build(notes)
    write(notes, CHANGES)
    report = sync(index, notes)
    assert done(report) == ({"new/n.md"}, {"a.md"}, {"sub/b.txt"}, 2)
    assert report.documents == 4
    assert texts(index) == {
        "README.md": "# Notes", "a.md": "sun", "new/n.md": "new", "sub/README.md": "sub",
    }  # fmt: skip
    assert done(sync(index, notes)) == (set(), set(), set(), 4)


def test_a_sync_begins_with_what_another_process_has_committed(notes: Path) -> None:
    index = build(notes)
    Index.open(index.path).delete(["a.md"])
    write(notes, {"gone.md": "gone"})
    sync(Index.open(index.path), notes)
    write(notes, {"gone.md": None, "row.md": "a file"})
    row = {"_id": "row.md", "text": "a row of a table"}
    Index.open(index.path).upsert([row], model=HashingEmbedder())
    report = sync(index, notes)
    assert done(report) == (set(), set(), {"gone.md"}, 4)
    assert report.failed == {"row.md": TAKEN}
    assert texts(index)["row.md"] == "a row of a table"


def test_a_sync_plans_again_if_another_process_commits_before_it_has_the_lock(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(notes)
    write(notes, {"n.md": "new", "row.md": "a file"})
    writer = index.store.writer

    def late(**options: float) -> object:
        other = Index.open(index.path)
        other.delete(["a.md", "sub/b.txt"])
        other.upsert([{"_id": "row.md", "text": "a row"}], model=HashingEmbedder())
        return writer(**options)

    monkeypatch.setattr(index.store, "writer", late)
    report = sync(index, notes)
    assert done(report) == ({"a.md", "n.md", "sub/b.txt"}, set(), set(), 2)
    assert report.failed == {"row.md": TAKEN}
    assert texts(index) == texts(Index.open(index.path))
    assert texts(index)["row.md"] == "a row"


def test_a_file_with_the_mark_of_a_page_in_its_name_is_a_file(notes: Path) -> None:
    write(notes, {"b#page=2.txt": "b"})
    index = build(notes)
    assert done(sync(index, notes)) == (set(), set(), set(), 5)
    write(notes, {"b#page=2.txt": None})
    assert sync(index, notes).deleted == ("b#page=2.txt",)


def test_nothing_changed_means_no_model_and_no_commit(notes: Path) -> None:
    index = build(notes)
    before = index.state.manifest
    os.utime(notes / "a.md", (0, 0))  # another time alone is no change
    report = index.sync(notes, model="no such model")
    assert (report.changes, report.unchanged) == (0, 4)
    assert Index.open(index.path).state.manifest == before
    write(notes, {"sub/b.txt": None})
    assert index.sync(notes, model="no such model").deleted == ("sub/b.txt",)


class Listing(HashingEmbedder):
    """Lists the texts that it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded: list[str] = []

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        self.embedded += tokens.texts
        return super().encode_tokens(tokens)


def test_a_moved_or_copied_file_keeps_its_vectors(notes: Path) -> None:
    long = "# Sea\n\n" + " ".join(f"word{n}" for n in range(900))
    write(notes, {"long.md": long})
    (notes / "two.pdf").write_bytes(make_pdf(["a tide", "a wave"]))
    index, model = build(notes), Listing()
    (notes / "2016").mkdir()
    for name in ("long.md", "two.pdf"):
        (notes / name).rename(notes / "2016" / name)
    write(notes, {"copy/a.md": "moon", "a.md": "sun", "2016/new.md": "# Sea\n\nshore"})
    report = index.sync(notes, model=model)
    assert {*report.added} == {"2016/long.md", "2016/two.pdf", "copy/a.md", "2016/new.md"}
    assert ({*report.replaced}, {*report.deleted}) == ({"a.md"}, {"long.md", "two.pdf"})
    assert {*model.embedded} - {*SELF_CHECK_TEXTS} == {"a.md sun", "Sea # Sea\n\nshore"}
    fresh = Index.build(notes, model="hashing")
    assert texts(index) == texts(fresh)
    for old, new in zip(*(sorted(passages(each).items()) for each in (index, fresh)), strict=True):
        assert old == new
    assert index.check().problems == ()


def test_a_change_that_keeps_size_and_time_is_found(notes: Path) -> None:
    index = build(notes)
    status = (notes / "a.md").stat()
    write(notes, {"a.md": "noon"})
    os.utime(notes / "a.md", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert sync(index, notes).replaced == ("a.md",)
    assert texts(index)["a.md"] == "noon"


def test_a_dry_run_tells_and_writes_nothing(notes: Path) -> None:
    index = build(notes)
    write(notes, CHANGES)
    before = index.state.manifest
    report = index.sync(notes, model="no such model", dry_run=True)
    assert done(report) == ({"new/n.md"}, {"a.md"}, {"sub/b.txt"}, 2)
    assert report.dry_run
    assert Index.open(index.path).state.manifest == before


def test_an_empty_index_is_filled(notes: Path, tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", model="hashing")
    assert len(sync(index, notes).added) == 4
    assert texts(index) == texts(build(notes))
    assert index.root == notes
    with pytest.raises(IndexStoreError, match="already holds an index"):
        Index.create(tmp_path / "i", model="hashing")


def test_ids_do_not_depend_on_the_folder_named(notes: Path) -> None:
    index = build(notes)
    for source in (notes / "sub", notes / "sub" / "README.md", f"{notes}/*/README.md"):
        assert index.upsert(source, model=HashingEmbedder()).counts.replaced == 0
    assert len(index) == 4
    assert index.add(notes / "sub", model=HashingEmbedder()).counts == RowCounts(duplicate=2)
    assert done(sync(index, notes / "sub")) == (set(), set(), set(), 2)
    write(notes, {"sub/b.txt": None, "a.md": None})
    assert sync(index, notes / "sub").deleted == ("sub/b.txt",)  # a.md lies outside of sub
    assert sync(index, notes).deleted == ("a.md",)


def test_a_changed_file_stops_add_with_what_to_do(notes: Path) -> None:
    index = build(notes)
    write(notes, {"a.md": "sun"})
    with pytest.raises(CorpusError, match=r"a\.md:1: the id .* or `index sync` for a folder"):
        index.add(notes, model=HashingEmbedder())


def test_documents_of_other_sources_stay(notes: Path, tmp_path: Path) -> None:
    index = build(notes)
    row = {"_id": "gone.md", "path": "gone.md", "text": "a row that looks like a file"}
    write(tmp_path / "other", {"outside.md": "outside", "sub/c.md": "outside c"})
    index.add([row, {"_id": "plain", "text": "a row"}], model=HashingEmbedder())
    index.add(tmp_path / "other", model=HashingEmbedder())
    assert not sync(index, notes).changes
    assert {"gone.md", "plain", "outside.md", "sub/c.md"} < texts(index).keys()
    write(notes, {"plain": "no extension", "sub/c.md": "inside c", "gone.md": "a file now"})
    report = sync(index, notes)
    assert set(report.failed) == {"sub/c.md", "gone.md"}
    assert "a document of another source has this id" in report.failed["gone.md"]
    assert texts(index)["sub/c.md"] == "outside c"
    assert texts(index)["gone.md"] == row["text"]


def test_an_index_of_rows_takes_a_folder_beside_them(notes: Path, tmp_path: Path) -> None:
    index = Index.build([{"_id": "r", "text": "row"}], out=tmp_path / "i", model="hashing")
    index.add(notes / "sub", model=HashingEmbedder())  # no root yet: these are not the root's
    assert index.root is None
    report = sync(index, notes)
    assert set(report.added) == {"a.md", "sub/README.md", "sub/b.txt"}
    assert set(report.failed) == {"README.md"}  # the id that sub/README.md got when sub was added
    assert "r" in texts(index)


def test_an_empty_or_absent_folder_is_refused(notes: Path) -> None:
    index = build(notes)
    shutil.rmtree(notes)
    with pytest.raises(CorpusError, match="notes: does not exist, so a sync would delete all"):
        sync(index, notes)
    with pytest.raises(IndexStoreError, match=r"and .*elsewhere does not exist\."):
        sync(index, notes.with_name("elsewhere"))
    notes.mkdir()
    with pytest.raises(CorpusError, match=r"no file that can be read.*pass allow_empty=True"):
        sync(index, notes)
    assert len(index) == 4
    assert len(sync(index, notes, allow_empty=True).deleted) == 4
    assert len(index) == 0


def test_another_folder_is_refused_unless_it_is_the_moved_root(notes: Path, tmp_path: Path) -> None:
    index = build(notes)
    notes.rename(tmp_path / "moved")
    with pytest.raises(IndexStoreError, match=r"holds files of .*/notes, and .*/moved does not"):
        sync(index, tmp_path / "moved")
    assert done(sync(index, tmp_path / "moved", moved=True)) == (set(), set(), set(), 4)
    assert index.root == tmp_path / "moved"
    assert done(sync(index, tmp_path / "moved")) == (set(), set(), set(), 4)


def test_a_file_that_cannot_be_read_keeps_its_document(notes: Path) -> None:
    write(notes, {"n.ipynb": '{"cells": [{"source": "old"}]}', "h.html": "<p>old"})
    index = build(notes)
    (notes / "a.md").write_bytes(b"\xff")
    write(notes, {"n.ipynb": "{broken", "sub/b.txt": "new b", "h.html": "<script>1</script>"})
    (notes / "bad.md").write_bytes(b"\xff")
    (notes / "README.md").unlink()
    (notes / "README.md").symlink_to("../other.md")
    report = sync(index, notes)
    assert set(report.failed) == {"a.md", "n.ipynb", "bad.md", "README.md"}
    assert done(report)[:3] == (set(), {"sub/b.txt"}, {"h.html"})
    assert texts(index) == {
        "README.md": "# Notes", "a.md": "moon", "n.ipynb": "old", "sub/README.md": "sub",
        "sub/b.txt": "new b",
    }  # fmt: skip


def test_a_folder_that_cannot_be_listed_keeps_its_documents(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(notes)
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    report = sync(index, notes)
    assert report.failed == {"sub": "cannot be listed: Permission denied"}
    assert (report.changes, len(index)) == (0, 4)


def test_a_writer_excludes_a_sync_with_changes_only(notes: Path) -> None:
    index = build(notes)
    with Index.open(index.path).store.writer():
        assert not sync(index, notes).changes
        write(notes, {"a.md": "sun"})
        with pytest.raises(IndexLocked):
            sync(index, notes)
    assert sync(index, notes).replaced == ("a.md",)


def test_an_inexact_model_is_allowed_though_the_settings_changed_meanwhile(notes: Path) -> None:
    index = build(notes)
    with Index.open(index.path).store.writer() as writer:
        writer.set_lexical(None)
    write(notes, {"a.md": "sun"})
    assert index.sync(notes, model=SameEngine(1e-2), allow_inexact=True).replaced == ("a.md",)


@pytest.mark.thorough
def test_random_changes_always_end_in_the_index_of_the_folder(notes: Path, tmp_path: Path) -> None:
    rng = random.Random(5)
    index = build(notes)
    index.add([{"_id": "row", "text": "of another source"}], model=HashingEmbedder())
    for _ in range(25):
        present = sorted(path.relative_to(notes).as_posix() for path in notes.rglob("*.*"))
        for name in rng.sample(present, rng.randint(0, min(3, len(present) - 1))):
            write(notes, {name: rng.choice([None, "", f"text {rng.random()}"])})
        for _ in range(rng.randint(0, 3)):
            write(notes, {f"{rng.choice('xyz')}/{rng.randrange(9)}.md": f"text {rng.random()}"})
        sync(index, notes, dry_run=rng.random() < 0.2)
        sync(index, notes)
        files = {
            path.relative_to(notes).as_posix(): path.read_text() for path in notes.rglob("*.*")
        }
        assert texts(index) == {
            **{name: text for name, text in files.items() if text}, "row": "of another source",
        }  # fmt: skip
    assert index.check().problems == ()


def test_an_interrupted_sync_keeps_what_it_committed_by_time(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(notes)
    write(notes, {f"new/{n:02}.md": f"text {n} " * 20 for n in range(40)})
    monkeypatch.setattr(ingest, "_BATCH_TOKENS", 300)
    monkeypatch.setattr(HashingEmbedder, "batch_tokens", 40)
    monkeypatch.setattr(ingest, "COMMIT_S", 0.0)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            sync(index, notes)
    index.refresh()
    kept = len(index)
    assert 4 < kept < 44
    report = sync(index, notes)
    assert (len(report.added), report.unchanged, report.documents) == (44 - kept, kept, 44)
    assert index.check().problems == ()


def test_a_sync_reads_files_as_the_build_did(notes: Path) -> None:
    index = Index.build(
        notes,
        out=notes.with_name("index"),
        model="hashing",
        metadata_fields=["modified"],
        column_types={"modified": "text"},
    )
    write(notes, {"a.md": "sun"})
    os.utime(notes / "a.md", (0, 1_700_000_000.0))  # 2023-11-14
    report = sync(index, notes)
    assert (report.replaced, report.failed) == (("a.md",), {})
    assert index.info().columns == {"modified": "string", "path": "string"}
    assert [d.doc_id for d in index.documents(where="modified LIKE '2023-11-14T%'")] == ["a.md"]


def test_the_path_of_a_file_stays_a_string(notes: Path) -> None:
    index = Index.create(notes.with_name("index"), model=HashingEmbedder())
    report = index.sync(notes, model=HashingEmbedder(), column_types={"path": "list[text]"})
    assert (len(report.added), report.failed) == (4, {})
    assert index.info().columns["path"] == "string"
    write(notes, {"a.md": "sun"})
    assert done(sync(index, notes)) == (set(), {"a.md"}, set(), 3)


def test_pages_are_read_again_when_their_menus_are_left_out(notes: Path) -> None:
    write(notes, {"page.html": "<nav>Home</nav><p>The mill</p>", "b.html": "sea"})
    index = build(notes)
    assert texts(index)["page.html"] == "Home\n\nThe mill"
    report = index.sync(notes, html="main")
    assert set(report.replaced) == {"page.html", "b.html"}
    assert texts(index)["page.html"] == "The mill"
    kept = Index.build(notes, out=notes.with_name("kept"), model="hashing", html="main")
    assert kept.sync(notes).changes == 0  # the index keeps the setting
    assert texts(kept) == texts(index)


def test_later_syncs_keep_how_files_are_read(
    notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper = [f"The {name} rises." for name in ("sea", "moon", "sun")]
    (notes / "c.pdf").write_bytes(make_pdf([*paper, "References", "Tides, 2001."]))
    index = build(notes)
    assert index.sync(notes).changes == 0
    capsys.readouterr()
    assert index.sync(notes, references="drop").replaced == ("c.pdf",)
    assert "Lists of references are left out: " in capsys.readouterr().err
    assert [*texts(index)][-3:] == [f"c.pdf#page={n}" for n in (1, 2, 3)]
    assert Index.open(index.path).sync(notes).changes == 0
    (notes / "c.pdf").write_bytes(make_pdf([*paper[:2], "References", "Tides, 2001."]))
    assert index.upsert(notes / "c.pdf").counts.indexed == 0
    assert index.sync(notes).replaced == ("c.pdf",)
    assert len(texts(index)) == 4 + 2
    assert index.sync(notes, references="keep").replaced == ("c.pdf",)
    assert len(texts(index)) == 4 + 4


def enriched(index: Index, *doc_ids: str) -> None:
    """Add a column to documents of files, as from a list of references."""
    feed = [{"_id": doc_id, "year": 2021} for doc_id in doc_ids]
    for again in False, True:
        report = index.upsert(feed, partial=True, model=UNOPENED)
        assert report.counts.duplicate == again * len(doc_ids)


def years(index: Index) -> set[str]:
    return {document.doc_id for document in index.documents("year = 2021")}


@pytest.mark.parametrize("n_shards", [None, 2])
def test_a_sync_knows_the_files_of_documents_that_partial_updates_changed(
    notes: Path, n_shards: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / "c.pdf").write_bytes(make_pdf(["a tide", "a wave", "a dune"]))
    out = notes.with_name("index")
    index = Index.build(notes, out=out, model="hashing", n_shards=n_shards)
    ids = {"a.md", "sub/README.md", "sub/b.txt", "c.pdf#page=2", "c.pdf#page=3"}
    enriched(index, *ids)
    index.upsert([{"_id": "README.md", "text": "Corrected"}], partial=True)
    index.upsert([{"_id": "a.md", "path": "a.md", "note": "read"}], partial=True)  # a second one
    assert done(index.sync(notes, model="none")) == (set(), set(), set(), 5)
    assert (years(index), texts(index)["README.md"]) == (ids, "Corrected")
    assert capsys.readouterr().err.count("are lost") == 0

    write(notes, {"a.md": "sun", "sub/b.txt": None})
    (notes / "c.pdf").write_bytes(make_pdf(["a tide", "a lake"]))
    (notes / "sub" / "README.md").rename(notes / "moved.md")
    assert sync(index, notes, dry_run=True).replaced == ("a.md", "c.pdf")
    assert "files are lost: a.md, c.pdf, sub/README.md. Repeat" in capsys.readouterr().err
    report = sync(index, notes)
    deleted = {"sub/b.txt", "sub/README.md"}
    assert done(report) == ({"moved.md"}, {"a.md", "c.pdf"}, deleted, 1)
    assert not report.failed
    assert "files are lost: a.md, c.pdf, sub/README.md. Repeat" in capsys.readouterr().err
    assert years(index) == set()
    assert sorted(texts(index)) == [
        "README.md", "a.md", "c.pdf#page=1", "c.pdf#page=2", "moved.md"
    ]  # fmt: skip
    assert done(sync(index, notes)) == (set(), set(), set(), 4)
    assert index.check().problems == ()


@pytest.mark.parametrize("columns", [None, ["year"]])
def test_pages_with_the_same_text_keep_what_partial_updates_gave_them(
    notes: Path, columns: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    def annotated(*comments: str) -> None:
        comment = "".join(f"\n% {each}" for each in comments).encode()
        (notes / "c.pdf").write_bytes(make_pdf(["a tide", "a wave"]) + comment)

    annotated()
    write(notes, {"y.md": "---\nyear: 1990\n---\nold"})
    out, kept = notes.with_name("index"), {"c.pdf#page=1", "c.pdf#page=2"}
    index = Index.build(notes, out=out, model="hashing", metadata_fields=columns)
    enriched(index, *kept)
    for comments in ("read",), ("read", "again"):  # a second change keeps them, too
        annotated(*comments)
        capsys.readouterr()
        assert sync(index, notes).replaced == ("c.pdf",)
        assert years(index) == kept
        assert "are lost" not in capsys.readouterr().err
        assert sync(index, notes).changes == 0
    index.upsert([{"_id": "c.pdf#page=1", "text": "a high tide"}], partial=True)
    annotated("last")
    assert sync(index, notes).replaced == ("c.pdf",)
    assert "are lost: c.pdf. Repeat" in capsys.readouterr().err
    assert (years(index), texts(index)["c.pdf#page=1"]) == ({"c.pdf#page=2"}, "a tide")
    assert index.check().problems == ()


@pytest.mark.parametrize("n_shards", [None, 2])
def test_what_partial_updates_changed_survives_upkeep(notes: Path, n_shards: int | None) -> None:
    out = notes.with_name("index")
    index = Index.build(notes, out=out, model="hashing", n_shards=n_shards)
    enriched(index, "a.md", "sub/b.txt")
    index.migrate("hashing:40")
    index.compact()
    index.repair()
    index.backup(notes.with_name("copy"))
    for each in index, Index.open(notes.with_name("copy")):
        assert done(each.sync(notes, model="none")) == (set(), set(), set(), 4)
        assert years(each) == {"a.md", "sub/b.txt"}
    table = notes.with_name("rows.csv")
    table.write_text("id,text\nr,a row\n")
    index.sync(table)  # deletes the documents that the table lacks, but no files
    assert texts(index).keys() >= {"r", "a.md", "sub/b.txt"}
    assert index.upsert(notes, partial=True, model=UNOPENED).counts.replaced == 2
    assert years(index) == {"a.md", "sub/b.txt"}
    assert done(index.sync(notes, model="none")) == (set(), set(), set(), 4)


def test_a_first_sync_says_which_folder_is_followed_and_what_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x/a.md", "x/b.md", "y/a.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"The text of {name}.")
    index = Index.build([{"_id": "r", "text": "a row"}], model="hashing:4", out=tmp_path / "i")
    index.upsert(tmp_path / "x/a.md")
    for dry_run in (True, False):
        capsys.readouterr()
        report = index.sync(tmp_path / "x", dry_run=dry_run)
        said = capsys.readouterr().err
        assert f"x becomes the folder of {tmp_path}/i: paths in it are the ids" in said
        assert "2 documents of other sources stay." in said
        assert (report.added, report.failed) == (("b.md",), {"a.md": KNOWN})
    index.delete("a.md")
    capsys.readouterr()
    assert index.sync(tmp_path / "x").added == ("a.md",)
    assert "becomes the folder" not in capsys.readouterr().err
    with pytest.raises(IndexStoreError, match="a folder that holds both with moved=True; then"):
        index.sync(tmp_path / "y")
    (tmp_path / "both").mkdir()
    for name in "xy":
        (tmp_path / name).rename(tmp_path / "both" / name)
    assert index.sync(tmp_path / "both", moved=True).changes == 5
    assert {each.doc_id for each in index} == {"r", "x/a.md", "x/b.md", "y/a.md"}
