"""Power lost at any point of any operation: the old or the new state holds, and can be written."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from sbert_search.base import files
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.faults import FULL, keep_result
from tests.index.faults.model import applied, apply, assert_holds, contents, new_index
from tests.index.faults.test_steps import AFTER, BEFORE, OPERATIONS
from tests.power import RecordingDisk, restore

TRIED_AT_CI = 12  # states of an operation, drawn at random
SEED = 7

states: dict[str, int] = {}


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_power_loss_leaves_the_old_or_the_new_state(fast_path: Path, name: str) -> None:
    path, again = fast_path / "i", fast_path / "again"
    old = new_index(path, BEFORE)
    new = applied(old, OPERATIONS[name])
    shutil.copytree(path, again)
    rng = random.Random(SEED)
    store = IndexStore.open(path)
    disk = RecordingDisk(path, rng)
    with store.writer() as writer, files.use_disk(disk):
        apply(writer, OPERATIONS[name])
    possible = list(disk.states)
    chosen = possible
    if not FULL and len(possible) > TRIED_AT_CI:
        ends = [key for key in possible if key in disk.last]
        chosen = [*rng.sample(possible, TRIED_AT_CI), ends[0]]
    seen = set()
    for key in chosen:
        restore(disk.states[key], path, again)
        held = contents(IndexStore.open(again).snapshot)
        assert held in ([new] if key in disk.last else [old, new])
        seen.add(held == new)
        write_again(again)
        assert_holds(IndexStore.open(again).snapshot, applied(held, AFTER))
    assert seen == ({True} if old == new else {False, True})
    states[name] = len(chosen)
    keep_result(
        "index_power", {"states": states, "seed": SEED, "neither_old_nor_new": 0, "lost": 0}
    )


def test_a_commit_is_whole_on_the_disk_when_it_returns(tmp_path: Path) -> None:
    path, again = tmp_path / "i", tmp_path / "again"
    old = new_index(path, BEFORE)
    operation = next(iter(OPERATIONS.values()))
    shutil.copytree(path, again)
    disk = RecordingDisk(path, random.Random(SEED))
    with IndexStore.open(path).writer() as writer, files.use_disk(disk):
        apply(writer, operation)
    assert applied(old, operation) != old
    for key in disk.last:
        restore(disk.states[key], path, again)
        assert check(again).problems == ()
        assert contents(IndexStore.open(again).snapshot) == applied(old, operation)


def write_again(path: Path) -> None:
    """The next writer works, and leaves nothing damaged."""
    with IndexStore.open(path).writer() as writer:
        apply(writer, AFTER)
    assert check(path).problems == ()
