"""Waiting for changes of a folder, with a clock that the test moves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sbert_search.index.building.synced_files import FolderWatch

Act = Callable[[], object]


class Stop(Exception):  # noqa: N818 (no error)
    """No look is left."""


def watch(folder: Path, acts: Sequence[Act | None]) -> FolderWatch:
    """Do one act before each look; raise when none is left."""
    left: Iterator[Act | None] = iter(acts)

    def sleep(seconds: float) -> None:
        assert seconds > 0
        act = next(left, "end")
        if act == "end":
            raise Stop
        if callable(act):
            act()

    return FolderWatch(folder, sleep=sleep)


def waits(watching: FolderWatch) -> int:
    """Count the waits that end before the looks do."""
    count = 0
    try:
        while True:
            watching.wait()
            count += 1
    except Stop:
        return count


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "a.md").write_text("a")
    return tmp_path


def change(notes: Path, text: str) -> Act:
    return lambda: (notes / "a.md").write_text(text)


def test_a_quiet_folder_is_never_reported(notes: Path) -> None:
    assert waits(watch(notes, [None] * 20)) == 0
    other = [lambda: (notes / "photo.png").write_text("x"), None, None]
    assert waits(watch(notes, other)) == 0


def test_a_change_is_reported_when_it_is_over_and_once_more_to_be_sure(notes: Path) -> None:
    watching = watch(notes, [change(notes, "b"), change(notes, "cc"), None, None, None, None])
    watching.wait()
    assert (notes / "a.md").read_text() == "cc"
    watching.wait()
    assert waits(watching) == 0


@pytest.mark.parametrize("act", ["add", "remove", "remove folder", "same size"])
def test_every_kind_of_change_is_seen(notes: Path, act: str) -> None:
    acts: dict[str, Act] = {
        "add": lambda: (notes / "b.md").write_text("b"),
        "remove": (notes / "a.md").unlink,
        "remove folder": lambda: shutil.rmtree(notes),
        "same size": change(notes, "b"),
    }
    assert waits(watch(notes, [acts[act], None, None, None])) == 2


def test_a_change_during_the_work_is_reported_next(notes: Path) -> None:
    watching = watch(notes, [change(notes, "bb"), None, None, None, None, None])
    watching.wait()
    (notes / "a.md").write_text("during the work")
    watching.wait()
    assert waits(watching) == 1


def test_endless_changes_are_reported_all_the_same(notes: Path) -> None:
    assert waits(watch(notes, [change(notes, "x" * n) for n in range(2, 60)])) >= 3


def test_a_failed_work_is_tried_again(notes: Path) -> None:
    watching = watch(notes, [None, None])
    watching.retry()
    watching.wait()
    assert waits(watching) == 0
