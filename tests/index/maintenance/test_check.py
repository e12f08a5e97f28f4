"""Checking an index: what it calls damaged is damaged, whatever is written beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.errors import IndexStoreError
from sbert_search.index.maintenance.check import CheckReport, check
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.store import IndexStore
from sbert_search.runtime.disk.folders import Folder
from tests.index.faults.model import Operation, apply, new_index
from tests.index.faults.test_steps import BEFORE
from tests.index.faults.trap import Trap, set_trap


def checked_while(path: Path, at_step: int, number: int) -> tuple[CheckReport, Trap]:
    """Check an index that another one compacts before a step of the check."""

    def rewrite() -> None:
        with IndexStore.open(path).writer() as writer:
            apply(writer, Operation("put", (("new", number, 2), ("d1", number, 1))))
            writer.compact()

    trap = Trap(at_step, rewrite)
    with set_trap(trap):
        return check(path), trap


def test_a_compaction_at_any_step_of_a_check_is_no_damage(fast_path: Path) -> None:
    new_index(fast_path / "i", BEFORE)
    struck, number = 0, 0
    while True:
        number += 1
        report, trap = checked_while(fast_path / "i", number, number)
        assert report.problems == ()
        if not trap.sprung:
            break
        struck += 1
    assert struck > 10


def test_damage_is_told_beside_a_writer_too(fast_path: Path) -> None:
    path = fast_path / "i"
    new_index(path, BEFORE)
    name = IndexStore.open(path).snapshot.manifest.segments[0].docs.name

    def damage() -> None:
        data = bytearray((path / name).read_bytes())
        data[200] ^= 1
        (path / name).write_bytes(data)
        with IndexStore.open(path).writer() as writer:
            apply(writer, Operation("delete", doc_ids=("e1",)))

    for at_step in (1, 5):
        with set_trap(Trap(at_step, damage)):
            assert name in [problem.file for problem in check(path).problems]
            damage()  # back to what it was


def test_an_index_that_never_stands_still_is_not_called_damaged(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read, versions = fast_path / "i", manifests.read, iter(range(1, 100))
    new_index(path, BEFORE)

    def read_and_rewrite(folder: Folder) -> Manifest:
        manifest = read(folder)
        with monkeypatch.context() as patch:
            patch.setattr(manifests, "read", read)
            with IndexStore.open(path).writer() as writer:
                apply(writer, Operation("put", (("new", next(versions), 2),)))
                writer.compact()
        return manifest

    monkeypatch.setattr(manifests, "read", read_and_rewrite)
    with pytest.raises(IndexStoreError, match="changed 5 times while it was opened"):
        check(path)
