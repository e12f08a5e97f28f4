"""`index sync` as a process."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from sbert_search import Index
from sbert_search.cli.index.sync import sync as sync_command
from sbert_search.index.building.synced_files import FolderWatch
from tests.cli.process import Done, command, environment, sbert_search
from tests.text.formats.test_pdf import make_pdf

HASHING = {"SBERT_SEARCH_MODEL": "hashing"}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes" / "sub").mkdir(parents=True)
    (tmp_path / "notes" / "a.md").write_text("# Tides\n\nThe moon.")
    (tmp_path / "notes" / "sub" / "b.txt").write_text("a mill")
    return tmp_path / "notes"


def sync(notes: Path, *options: str) -> Done:
    return sbert_search("index", "sync", notes.with_name("i"), notes, *options, env=HASHING)


def test_from_nothing_to_nothing_to_do(notes: Path) -> None:
    done = sync(notes, "--dry-run")
    assert (done.code, done.out.splitlines()[:2]) == (0, ["+ a.md", "+ sub/b.txt"])
    assert not notes.with_name("i").exists()
    done = sync(notes, "--metric", "dot", "--json")
    assert done.records[0]["added"] == ["a.md", "sub/b.txt"]
    assert done.records[0]["documents"] == 2
    (notes / "a.md").write_text("The sun.")
    (notes / "sub" / "b.txt").unlink()
    done = sync(notes, "--dry-run")
    assert done.out.splitlines()[:2] == ["~ a.md", "- sub/b.txt"]
    assert "would be replaced 1, would be deleted 1" in done.out
    assert "replaced 1, deleted 1, unchanged 0; documents in" in sync(notes).out
    done = sync(notes)
    assert done.out.startswith("Files: added 0, replaced 0, deleted 0, unchanged 1;")
    info = sbert_search("index", "info", notes.with_name("i")).out
    assert f"folder      {notes}" in info
    assert ", dot" in info
    done = sync(notes, "--metric", "cosine")
    assert (done.code, "--metric is for a new index" in done.err) == (2, True)


def test_other_metadata_fields_are_refused_of_an_index_that_exists(notes: Path) -> None:
    for _ in range(2):
        assert sync(notes, "--metadata-fields", "year").code == 0
    done = sync(notes, "--metadata-fields", "year,tags")
    assert (done.code, "--metadata-fields is for a new index" in done.err) == (2, True)


def test_a_dry_run_does_not_go_on(notes: Path) -> None:
    done = sync(notes, "--dry-run", "--watch")
    assert (done.code, "--watch has no effect with --dry-run" in done.err) == (2, True)


def test_the_time_of_a_file_can_be_stored_as_text(notes: Path) -> None:
    done = sync(notes, "--column-type", "modified=day", "--dry-run")
    assert (done.code, "Unknown column type 'day'" in done.err) == (2, True)
    assert sync(notes, "--column-type", "modified=text").code == 0
    (notes / "a.md").write_text("The sun.")
    assert "replaced 1" in sync(notes).out  # the index knows the type
    columns = "columns     modified string, path string"
    assert columns in sbert_search("index", "info", notes.with_name("i")).out
    (notes / "a.md").write_text("The stars.")
    done = sync(notes, "--column-type", "modified=timestamp")
    message = "'modified' is declared as timestamp, but it is string"
    assert (done.code, message in done.err) == (2, True)


def test_what_cannot_be_read_gives_exit_code_3(notes: Path) -> None:
    assert sync(notes).code == 0
    (notes / "a.md").write_bytes(b"\xff")
    done = sync(notes)
    assert done.code == 3
    assert (
        "a.md: invalid UTF-8 at byte 1. The index keeps the old documents of this file." in done.err
    )
    hits = sbert_search("search", notes.with_name("i"), "moon", "--json", env=HASHING).records
    assert hits[0]["title"] == "Tides"
    done = sync(notes, "-q")
    assert done.code == 3
    assert "unchanged 1, rejected 1 (leave out -q to see why);" in done.out


def test_a_scanned_pdf_is_rejected_once(notes: Path) -> None:
    listed = notes.with_name("i.rejects.jsonl")
    assert sync(notes).code == 0
    (notes / "scan.pdf").write_bytes(make_pdf([""]))
    done = sync(notes)
    assert (done.code, "scan.pdf: no page has text" in done.err) == (3, True)
    for options in ((), ("--dry-run",), ()):
        done = sync(notes, *options)
        assert (done.code, ", rejected" in done.out) == (0, False)
        assert "Not indexed, as an earlier sync reported: scan.pdf (no page has" in done.err
        assert listed.exists()
    (notes / "a.md").write_text("The sun.")
    done = sync(notes, "--json")
    record = done.records[0]
    assert (done.code, [*record["failed_before"]], record["failed"]) == (0, ["scan.pdf"], {})
    (notes / "scan.pdf").write_bytes(make_pdf(["", ""]))  # another one
    assert sync(notes).code == 3
    (notes / "scan.pdf").write_bytes(make_pdf(["The stars."]))
    assert (sync(notes).code, listed.exists()) == (0, False)
    (notes / "scan.pdf").write_bytes(make_pdf([""]))
    for _ in range(2):  # the index keeps what it no longer says
        done = sync(notes)
        assert (done.code, "The index keeps the old documents" in done.err) == (3, True)


def test_a_broken_file_is_rejected_once_until_it_changes(notes: Path) -> None:
    sound = make_pdf(["one", "two", "three"])
    at = sound.index(b"<< /Length", sound.index(b"(two)"))
    (notes / "page.pdf").write_bytes(sound[:at] + b"<< /Filter /Foo " + sound[at + 3 :])
    (notes / "cut.pdf").write_bytes(sound[:200])
    (notes / "b.ipynb").write_text("[]")
    done = sync(notes)
    assert (done.code, "rejected 3 " in done.out) == (3, True)
    for _ in range(2):
        done = sync(notes)
        assert (done.code, done.out.startswith("Files: added 0, replaced 0,")) == (0, True)
        assert all(f"{name} (" in done.err for name in ("page.pdf", "cut.pdf", "b.ipynb"))
    rejects = notes.with_name("i.rejects.jsonl").read_text()
    (notes / "c.md").write_text("another note")  # a sync that writes keeps the list
    assert (sync(notes).code, notes.with_name("i.rejects.jsonl").read_text()) == (0, rejects)
    years = notes.with_name("years.csv")
    years.write_text("_id,year\na.md,2024\n")  # an update keeps it, too
    done = sbert_search("index", "upsert", notes.with_name("i"), years, "--partial", env=HASHING)
    assert (done.code, sync(notes).code, "1 replaced" in done.out) == (0, 0, True)
    (notes / "cut.pdf").write_bytes(sound[:300])  # still broken
    assert (sync(notes).code, sync(notes).code) == (3, 0)
    (notes / "page.pdf").write_bytes(sound)
    assert "~ page.pdf" in sync(notes).out


def test_front_matter_gives_the_columns_that_are_named(notes: Path) -> None:
    (notes / "a.md").write_text("---\nyear: 2019\ntags: [sea, moon]\ndraft: no\n---\nThe moon.")
    named = ("--metadata-fields", "year,tags", "--column-type", "year=text")
    assert sync(notes, *named).code == 0
    found = {"path": "string", "year": "string", "tags": "list[string]"}
    assert Index.open(notes.with_name("i")).info().columns == found
    (notes / "c.md").write_text("---\nyear: 2021\ndraft: yes\n---\nThe sea.")
    assert "+ c.md" in sync(notes).out  # the index keeps the choice
    where = ("--where", "year >= '2020'", "--json")
    hits = sbert_search("search", notes.with_name("i"), "sea", *where, env=HASHING).records
    assert [(hit["doc_id"], hit["metadata"]["year"]) for hit in hits] == [("c.md", "2021")]


def test_what_is_left_out_is_kept_with_the_index(notes: Path) -> None:
    (notes / "scan.pdf").write_bytes(make_pdf([""]))
    (notes / "drafts").mkdir()
    (notes / "drafts" / "c.md").write_text("a draft")
    (notes / "drafts" / "sub").mkdir()
    (notes / "drafts" / "sub" / "d.md").write_text("a draft")
    done = sync(notes, "--exclude", "*.pdf", "--exclude", "drafts/sub", "--json")
    assert done.code == 0
    assert done.records[0]["added"] == ["a.md", "drafts/c.md", "sub/b.txt"]
    assert "unchanged 3;" in sync(notes).out
    done = sync(notes, "--exclude", "*.pdf", "--exclude", "drafts", "--json")
    assert done.records[0]["deleted"] == ["drafts/c.md"]
    assert "unchanged 2;" in sync(notes).out
    for folder in (notes / "drafts", notes / "sub"):  # paths are those of the whole folder
        done = sbert_search(
            *("index", "sync", notes.with_name("i"), folder, "--allow-empty", "--json"), env=HASHING
        )
        assert done.records[0]["added"] == []
    assert sync(notes, "--exclude", "").code == 3
    assert ", rejected" not in sync(notes).out
    assert len(Index.open(notes.with_name("i"))) == 4
    done = sync(notes, "--exclude", "*.*")
    assert (done.code, "has no file that can be read" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("pattern", "left_out"),
    [
        ("*.pdf", ["a.pdf", "x/b.pdf", "x/y/c.pdf"]),
        ("x", ["x/b.pdf", "x/y/c.pdf", "x/y/d.md"]),
        ("y/", ["x/y/c.pdf", "x/y/d.md"]),
        ("x/y", ["x/y/c.pdf", "x/y/d.md"]),
        ("y/d.md", []),
        ("*/d.md", ["x/y/d.md"]),
        ("x/*.pdf", ["x/b.pdf", "x/y/c.pdf"]),
        ("?.pdf", ["a.pdf", "x/b.pdf", "x/y/c.pdf"]),
        ("X", []),
        ("", []),
    ],
)
def test_patterns_of_what_is_left_out(tmp_path: Path, pattern: str, left_out: list[str]) -> None:
    names = ["a.pdf", "e.md", "x/b.pdf", "x/y/c.pdf", "x/y/d.md"]
    for name in names:
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_pdf([name]) if name.endswith(".pdf") else name.encode())
    index = Index.build(tmp_path / "docs", model="hashing", exclude=[pattern])
    found = {str(document.metadata["path"]) for document in index}
    assert sorted(set(names) - found) == left_out


def test_a_build_names_the_option_that_leaves_a_scanned_file_out(notes: Path) -> None:
    (notes / "scan.pdf").write_bytes(make_pdf([""]))
    build = ("index", "build", notes, "--out", notes.with_name("i"))
    done = sbert_search(*build, env=HASHING)
    assert (done.code, "Leave it out with --exclude" in done.err) == (1, True)
    assert sbert_search(*build, "--exclude", "scan.*", env=HASHING).code == 0
    assert sync(notes).code == 0


def test_a_build_names_all_bad_files_at_once(notes: Path) -> None:
    for n in range(12):
        (notes / f"{n:02}.md").write_bytes(b"\xff")
    build = ("index", "build", notes, "--out", notes.with_name("i"))
    done = sbert_search(*build, env=HASHING)
    assert done.code == 1
    first, *lines, last = done.err.splitlines()
    assert first.endswith("12 bad files or pages:")
    bad = [f"{notes}/{n:02}.md:1: invalid UTF-8 at byte 1 (b'\\xff')." for n in range(10)]
    assert lines[:-1] == [*bad, "and 2 more."]
    assert lines[-1].endswith("name the encoding: --encoding cp1252.")
    assert last.endswith("pass --on-error skip to read the others and to list these.")
    assert not notes.with_name("i").exists()
    done = sbert_search(*build, "--on-error", "skip", env=HASHING)
    assert (done.code, "2 indexed, 0 replaced, 0 duplicate, 12 rejected" in done.out) == (3, True)


def test_a_note_names_what_is_not_read(notes: Path) -> None:
    (notes / "docs.csv").write_text("id,text\n1,x\n")
    (notes / "img.png").write_bytes(b"\x89PNG")
    said = "tables are not read with a folder; add them by `index upsert`: docs.csv"
    others = "1 files of other kinds (.png 1)"
    for options in (("--dry-run",), (), ("--dry-run",)):
        done = sync(notes, *options)
        assert done.err.count(f"{notes}: not read: {said}; {others}.") == 1
    added = sbert_search("index", "upsert", notes.with_name("i"), notes / "docs.csv", env=HASHING)
    assert added.code == 0
    assert "unchanged 2; documents in" in sync(notes).out


def test_rejected_files_are_counted_and_listed(notes: Path) -> None:
    (notes / "c.md").write_bytes(b"# x\n\xff\xfe\xff")
    rejects = notes.with_name("i.rejects.jsonl")
    done = sync(notes, "-q")
    assert f"unchanged 0, rejected 1 ({rejects} says why); documents in" in done.out
    assert (done.code, done.err) == (3, "")
    (notes / "a.md").write_bytes(b"\xff")
    (notes / "d.md").symlink_to(notes.with_name("outside.md"))
    (notes / "sub" / "e.md").write_text("A new note.")
    done = sync(notes)
    assert f"rejected 2 ({rejects} says why)" in done.out
    assert (
        "a.md: invalid UTF-8 at byte 1. The index keeps the old documents of this file." in done.err
    )
    assert "as an earlier sync reported: c.md (invalid UTF-8 at byte 5)." in done.err
    names = {json.loads(line)["source"].split("/")[-1] for line in rejects.read_text().splitlines()}
    assert names == {"a.md:1", "c.md:1", "d.md"}
    (notes / "a.md").write_text("The sun.")
    (notes / "c.md").unlink()
    (notes / "d.md").unlink()
    assert (sync(notes).code, rejects.exists()) == (0, False)


def test_an_empty_folder_is_refused_before_anything_is_made(notes: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = sbert_search("index", "sync", tmp_path / "i", tmp_path / "empty", env=HASHING)
    assert (done.code, "Is the disk mounted?" in done.err) == (1, True)
    assert not (tmp_path / "i").exists()


def test_an_empty_name_is_not_the_current_folder(notes: Path) -> None:
    index = notes.with_name("i")
    done = sbert_search("index", "sync", index, "", env=HASHING, cwd=notes)
    assert (done.code, "it is empty; write . for the current folder" in done.err) == (2, True)
    done = sbert_search("index", "sync", index, "-", env=HASHING, cwd=notes)
    assert (done.code, "reads no standard input" in done.err) == (2, True)
    assert not index.exists()


@pytest.mark.thorough
def test_watch_follows_the_folder_until_it_is_interrupted(notes: Path) -> None:
    line = command("index", "sync", notes.with_name("i"), notes, "--watch")
    with subprocess.Popen(
        line, env=environment(HASHING), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(3)]
        assert lines[2].startswith("Files: added 2")
        (notes / "new.md").write_text("A new note.")
        assert child.stdout.readline() == "+ new.md\n"
        assert child.stdout.readline().startswith("Files: added 1")
        (notes / "new.md").write_bytes(b"caf\xe9")
        assert child.stdout.readline().startswith("Files: added 0")
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        assert child.returncode == 130
        assert "interrupted." in err
        assert (
            "new.md: invalid UTF-8 at byte 4. The index keeps the old documents of this file."
            in err
        )
        assert "Traceback" not in err
    assert sync(notes).out.startswith("Files: added 0")


def test_the_list_of_rejects_is_removed_with_its_last_file(notes: Path) -> None:
    listed = notes.with_name("i.rejects.jsonl")
    (notes / "bad.md").write_bytes(b"caf\xe9")
    sync(notes)
    assert listed.exists()
    for name in ("bad.md", "a.md"):
        (notes / name).unlink()
    assert sync(notes).code == 0
    assert not listed.exists()


class Places:
    """A notes folder and an index that another program moves away, replaces and puts back.

    Each call of `step` is one change of the folders. `check` compares the index with the notes.
    """

    def __init__(self, root: Path, seed: int, *, named: bool = False) -> None:
        self.named = named  # whether the command names the model
        self.index, self.notes, self.root = root / "i", root / "notes", root
        self.random, self.n_steps, self.n_checked = Random(seed), 0, 0

    def step(self) -> None:
        self.n_steps += 1
        kind = self.random.choice(("edit", "index", "index", "notes", "backup", "other"))
        if kind in ("backup", "other"):  # one of these comes to the place of the index
            shutil.rmtree(self._found(self.index))
            shutil.copytree(self.root / kind, self.index)
        elif kind != "edit":
            place = self.index if kind == "index" else self.notes
            found = self._found(place)
            found.rename(self._away(place) if found == place else place)
        if self.notes.exists() and self.index.exists():
            name = self.random.choice("bcde")
            (self.notes / f"{name}.md").write_text(f"word{self.n_steps}")

    def check(self) -> None:
        """Compare what the watch left; it has had time for the last change."""
        if not self._away(self.index).exists() and self.notes.exists():
            index = Index.open(self.index)
            if self.named and index.identity.name != "hashing":
                return  # an index of another model than the one named is left alone
            texts = {path.name: path.read_text() for path in self.notes.iterdir()}
            held = {document.doc_id: document.text for document in index.documents()}
            assert held == {**texts, "kept": "from another source"}
            assert index.state.settings.metric == "dot"
            self.n_checked += 1
        elif self._away(self.index).exists():
            assert not self.index.exists()

    def _found(self, place: Path) -> Path:
        return away if (away := self._away(place)).exists() else place

    def _away(self, place: Path) -> Path:
        return place.with_name(f"{place.name}.away")


@pytest.mark.thorough
@pytest.mark.parametrize("named", [(), ("--model", "hashing")])
@pytest.mark.parametrize("seed", range(4))
def test_a_watch_never_makes_an_index_in_place_of_one_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, named: tuple[str, ...]
) -> None:
    """Index and notes are each here, away, replaced by another, and back, in any order."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("a mill")
    places = Places(tmp_path, seed, named=bool(named))
    kept = [{"_id": "kept", "text": "from another source"}]
    made = Index.create(places.index, model="hashing", metric="dot")
    made.add(kept)
    made.sync(places.notes)
    made.backup(tmp_path / "backup")
    Index.create(tmp_path / "other", model="hashing:64", metric="dot").add(kept)

    def polls() -> Iterator[None]:
        for _ in range(60):
            yield from [None] * 4  # a change, a quiet poll, the confirmation, the retry
            places.check()
            places.step()
        raise KeyboardInterrupt

    waits = polls()
    quick = partial(FolderWatch, sleep=lambda _: next(waits))
    monkeypatch.setattr("sbert_search.index.building.synced_files.FolderWatch", quick)
    line = [str(places.index), str(places.notes), "--watch", *named]
    done = CliRunner().invoke(sync_command, line)
    assert places.n_steps == 60, done.exception
    assert places.n_checked >= 5
    assert "The watch goes on when there is one again." in done.output


def test_a_dry_run_with_a_table_warns_and_refuses_as_the_sync_does(tmp_path: Path) -> None:
    table, index = tmp_path / "faq.csv", tmp_path / "faq.index"

    def synced(text: str, *options: str) -> Done:
        table.write_text(text)
        return sbert_search("index", "sync", index, table, *options, env=HASHING)

    first = "id;text;day\n1;a mill;2024\n2;a lamp;2025\n3;a river;2023\n"
    done = synced(first)
    assert (done.code, f"--out {index} --id-field NAME" in done.err) == (1, True)
    assert sbert_search("index", "build", table, "--out", index, env=HASHING).code == 0
    for options in (("--dry-run",), ()):
        assert synced("sep=;\n" + first + ";;\n", *options).out.count("unchanged 3") == 1
        done = synced("id;text;day\n1;a mill;2024\n;;\n", *options)
        assert (done.code, "delete 2 of 3 documents" in done.err) == (1, True)
        done = synced(first.replace("day", "date"), "--new-columns", "error", *options)
        assert (done.code, "They are refused" in done.err) == (1, True)
        done = synced(first.replace("day", "date"), *options)
        assert (done.code, done.err.count("3 documents lose values. --new-columns error")) == (0, 1)
