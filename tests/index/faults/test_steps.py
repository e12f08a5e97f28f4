"""Every I/O step of every operation fails in every way: the old or the new state holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search.errors import CommitUnknown, IndexStoreError
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.faults import FAULTS, Fault, Killed, every_step, keep_result
from tests.index.faults.model import (
    Model,
    Operation,
    applied,
    apply,
    assert_holds,
    contents,
    new_index,
)

BEFORE = (
    Operation("put", tuple((f"d{i}", 0, 1 + i % 3) for i in range(8)), cursor=8),
    Operation("put", tuple((f"e{i}", 0, 1) for i in range(4)), cursor=12),
    Operation("put", (("d1", 1, 2),)),
    Operation("delete", doc_ids=("d2", "e0")),
)
OPERATIONS = {
    "commit": Operation("put", (("new", 0, 2), ("other", 0, 1)), cursor=14),
    "upsert": Operation("put", (("d0", 1, 1), ("e1", 1, 3), ("new", 0, 1))),
    "delete": Operation("delete", doc_ids=("d3", "e2", "absent")),
    "settle": Operation("settle"),
    "compact": Operation("compact"),
}
AFTER = Operation("put", (("after", 0, 1), ("d0", 9, 1)))

steps: dict[str, int] = {}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_any_failing_step_leaves_the_old_or_the_new_state(
    fast_path: Path, name: str, fault: Fault
) -> None:
    base, path = fast_path / "base", fast_path / "i"
    old = new_index(base, BEFORE)
    new = applied(old, OPERATIONS[name])

    def prepare() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(base, path)

    def work() -> None:
        with IndexStore.open(path).writer() as writer:
            apply(writer, OPERATIONS[name])

    count = 0
    for raised in every_step(fault, prepare, work):
        count += 1
        state = check_state(path, raised, old, new)
        with IndexStore.open(path).writer() as writer:
            apply(writer, AFTER)
        assert_holds(IndexStore.open(path).snapshot, applied(state, AFTER))
        assert check(path).problems == ()
    assert count >= 10
    steps[f"{name}, {fault}"] = count
    keep_result("index_steps", {"failed_steps": steps, "states_neither_old_nor_new": 0})


def check_state(path: Path, raised: BaseException | None, old: Model, new: Model) -> Model:
    """Compare the index with what may hold after this error, and return what does hold."""
    assert raised is None or isinstance(raised, Killed | IndexStoreError), repr(raised)
    report = check(path)
    assert report.problems == ()
    state = contents(IndexStore.open(path).snapshot)
    if raised is None:
        expected = [new]
    elif isinstance(raised, Killed | CommitUnknown):
        expected = [old, new]
    else:
        expected = [old]
        assert "is as it was before" in str(raised)
        assert report.strays == ()
    assert state in expected
    assert list(state) in [list(model) for model in expected]
    return state


@pytest.mark.parametrize("fault", FAULTS)
def test_any_failing_step_of_a_creation_can_be_tried_again(fast_path: Path, fault: Fault) -> None:
    repeat_until_sound(fault, fast_path / "i", lambda path: new_index(path))


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_any_failing_step_of_a_snapshot_leaves_no_target_or_a_whole_one(
    fast_path: Path, fault: Fault
) -> None:
    model = new_index(fast_path / "i", BEFORE)

    def work(path: Path) -> None:
        with IndexStore.open(fast_path / "i").writer() as writer:
            writer.backup_to(path)

    repeat_until_sound(fault, fast_path / "copy", work)
    assert_holds(IndexStore.open(fast_path / "copy").snapshot, model)


def repeat_until_sound(fault: Fault, path: Path, work: Callable[[Path], object]) -> None:
    """Fail each step; what is left is nothing, something to go on from, or the whole thing."""

    def prepare() -> None:
        shutil.rmtree(path, ignore_errors=True)

    for raised in every_step(fault, prepare, lambda: work(path)):
        assert raised is None or isinstance(raised, Killed | IndexStoreError), repr(raised)
        if not (path / "MANIFEST.json").exists():
            work(path)
        assert check(path).problems == ()
