"""Every I/O step of every change over shards fails in every way: all shards are old or all new."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search.errors import CommitUnknown, IndexStoreError
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.faults import FAULTS, FULL, Fault, Killed, every_step, keep_result
from tests.index.faults.model import Model, Operation, applied, apply, assert_holds, contents
from tests.index.faults.test_steps import AFTER, BEFORE, OPERATIONS
from tests.index.shards.sharded import new_sharded

NAMES = list(OPERATIONS) if FULL else ["upsert", "delete"]
STRIDE = 1 if FULL else 11  # coprime to the number of steps that repeat for each shard

steps: dict[str, int] = {}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_any_failing_step_leaves_all_shards_old_or_all_new(
    fast_path: Path, name: str, fault: Fault
) -> None:
    base, path = fast_path / "base", fast_path / "i"
    old = new_sharded(base, BEFORE)
    new = applied(old, OPERATIONS[name])

    def prepare() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(base, path)

    def work() -> None:
        with IndexStore.open(path).writer() as writer:
            apply(writer, OPERATIONS[name])

    count = 0
    for raised in every_step(fault, prepare, work, STRIDE):
        count += 1
        state = check_state(path, raised, old, new)
        with IndexStore.open(path).writer() as writer:
            apply(writer, AFTER)
        assert_holds(IndexStore.open(path).snapshot, applied(state, AFTER))
        assert check(path).problems == ()
        assert not list(path.glob("*/NEXT.json"))
    assert count * STRIDE >= 30  # the steps of a delete, which has the fewest
    steps[f"{name}, {fault}"] = count
    keep_result("shard_steps", {"failed_steps": steps, "states_neither_old_nor_new": 0})


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
    repeat_until_sound(fault, fast_path / "i", new_sharded)


@pytest.mark.parametrize("fault", FAULTS)
def test_any_failing_step_of_a_backup_leaves_no_target_or_a_whole_one(
    fast_path: Path, fault: Fault
) -> None:
    model = new_sharded(fast_path / "i", BEFORE)

    def work(path: Path) -> None:
        IndexStore.open(fast_path / "i").backup_to(path)

    repeat_until_sound(fault, fast_path / "copy", work)
    assert_holds(IndexStore.open(fast_path / "copy").snapshot, model)


def repeat_until_sound(fault: Fault, path: Path, work: Callable[[Path], object]) -> None:
    """Fail each step; what is left is nothing, something to go on from, or the whole thing."""

    def prepare() -> None:
        shutil.rmtree(path, ignore_errors=True)

    for raised in every_step(fault, prepare, lambda: work(path), STRIDE):
        assert raised is None or isinstance(raised, Killed | IndexStoreError), repr(raised)
        if not (path / "shards.json").exists():
            work(path)
        assert check(path).problems == ()


@pytest.mark.thorough
def test_a_writer_whose_commit_has_an_unknown_outcome_makes_no_other(
    fast_path: Path,
) -> None:
    base, path = fast_path / "base", fast_path / "i"
    new_sharded(base, BEFORE)

    def prepare() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(base, path)

    refused = 0

    def work() -> None:
        nonlocal refused
        with IndexStore.open(path).writer() as writer:
            try:
                apply(writer, OPERATIONS["commit"])
            except CommitUnknown:
                with pytest.raises(IndexStoreError, match="failed at its last step"):
                    apply(writer, Operation("delete", doc_ids=("d1",)))
                refused += 1
                raise

    for _ in every_step("eio", prepare, work):
        pass
    assert refused
