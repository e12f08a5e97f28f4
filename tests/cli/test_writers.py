"""Many commands that write to one index at once: they wait in line, and every document is there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sbert_search.index.index import Index
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from sbert_search.index.writer import IndexWriter
from tests.cli.process import command, environment
from tests.faults import FULL, keep_result

WRITERS = 8 if FULL else 3
EACH = 200


@pytest.mark.thorough
def test_adds_at_once_wait_for_each_other_and_lose_nothing(index: Path, tmp_path: Path) -> None:
    before = IndexStore.open(index).snapshot.n_docs
    crowd = []
    for number in range(WRITERS):
        source = tmp_path / f"{number}.jsonl"
        rows = ({"_id": f"{number}-{i}", "text": f"text {i}"} for i in range(EACH))
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        add = command("index", "add", index, source, "--wait", 120, "--quiet", "--json")
        crowd.append(subprocess.Popen(add, stdout=subprocess.PIPE, env=environment()))
    reports = [json.loads(one.communicate(timeout=300)[0]) for one in crowd]
    assert [report["indexed"] for report in reports] == [EACH] * WRITERS
    snapshot = IndexStore.open(index).snapshot
    assert snapshot.n_docs == before + WRITERS * EACH
    names = {document.doc_id for document in snapshot.iter_documents()}
    assert {f"{number}-{i}" for number in range(WRITERS) for i in range(EACH)} <= names
    assert check(index).problems == ()
    keep_result("index_writers", {"writers_at_once": WRITERS, "documents_each": EACH, "lost": 0})


@pytest.mark.parametrize(
    "change", [("delete", "--ids", "mill"), ("repair",), ("lexical", "--title-weight", 3)]
)
def test_who_does_not_wait_is_told_how_to(index: Path, change: tuple[object, ...]) -> None:
    with IndexStore.open(index).writer():
        line = command("index", change[0], index, *change[1:], "--wait", 0.1)
        done = subprocess.run(line, capture_output=True, text=True, env=environment())
    assert done.returncode == 1
    assert "wait for it (--wait SECONDS), or end it." in done.stderr


@pytest.mark.thorough
def test_a_second_build_into_a_folder_is_not_told_of_an_option_that_it_lacks(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "i"

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(IndexWriter, "finish_build", stop)
        with pytest.raises(KeyboardInterrupt):
            Index.build(corpus, out=out, model="hashing")
    line = command("index", "build", corpus, "--out", out, "--model", "hashing")
    with IndexStore.open(out).writer():
        done = subprocess.run(line, capture_output=True, text=True, env=environment())
    assert done.returncode == 1
    assert "; wait for it, or end it. " in done.stderr
    assert subprocess.run(line, capture_output=True, env=environment()).returncode == 0
