"""Checking an index: what it calls damaged is damaged, whatever is written beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.base.folders import Folder
from sbert_search.errors import IndexStoreError
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import check as check_module
from sbert_search.index.upkeep.check import CheckReport, check
from tests.index.batches import make_batch, some_documents
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


def of_two_documents(path: Path) -> Snapshot:
    """Make an index of two documents; the first has two passages."""
    store = IndexStore.create(path, Manifest.new(VectorSettings(dim=2), {"year": "int64"}))
    batch = make_batch(some_documents(2), np.eye(3, 2, dtype=np.float32), chunks=[2, 1])
    with store.writer() as writer:
        writer.commit(batch)
    return IndexStore.open(path).snapshot


def of_columns(**wrong: Any) -> Callable[[str, type], Any]:
    return lambda name, dtype: np.array(wrong[name], dtype)


ROWS = np.array([0, 1, 2])
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({"int_column": of_columns(row=[0, 2, 1])}, "expected row 1 at position 1, got row 2"),
    "passages": (
        {"int_column": of_columns(row=ROWS, chunk=[0, 1, 1])},
        "expected passage 0 in row 2, got passage 1",
    ),
    "gaps": (
        {"rows": ROWS * 2, "int_column": of_columns(row=ROWS * 2, chunk=[0, 1, 0])},
        "expected row 1 after row 0 of a document, got row 2",
    ),
    "ids": (
        {"ids": np.zeros((3, 2), np.uint64)},
        "expected id hash [0-9a-f]{16} with row [02] in column 0, got id hash 0{16} with row 0",
    ),
    "vectors": (
        {"vectors": np.array([[0, 1], [1, 0], [1, -np.inf]], np.float32)},
        "expected finite elements, got -inf in row 2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_part_that_does_not_fit_the_others_is_shown(case: str, tmp_path: Path) -> None:
    wrong, message = WRONG[case]
    snapshot = of_two_documents(tmp_path / "i")
    assert list(check_module._inconsistencies(snapshot)) == []
    vars(snapshot.segments[0]).update(wrong)
    (problem,) = check_module._inconsistencies(snapshot)
    assert re.search(message, str(problem)), problem


@pytest.mark.parametrize(
    ("live", "message"),
    [
        ([1, 0, 1], "rows of whole documents, got row 1 of a document that has live and dead rows"),
        ([1, 1, 0], "expected 3 live rows and 2 live documents, got 2 and 1"),
    ],
)
def test_tombstones_that_do_not_fit_are_shown(
    live: list[int], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = of_two_documents(tmp_path / "i")
    monkeypatch.setattr(snapshot, "live", lambda i: np.array(live, bool))
    (problem,) = check_module._inconsistencies(snapshot)
    assert message in str(problem)
