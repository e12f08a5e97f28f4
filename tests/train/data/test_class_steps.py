"""Every step has two texts of a class and texts of two classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sbert_search.base.seed import generator
from sbert_search.train.data.grouping import class_steps
from sbert_search.train.loop.objective import BatchingConfig, Rows, Unit


def steps_of(
    classes: list[int], size: int, *, unit: Unit = "rows", drawn: Rows | None = None, epoch: int = 0
) -> list[list[int]]:
    lengths = np.random.default_rng(1).integers(1, 20, len(classes))
    rows = np.arange(len(classes)) if drawn is None else drawn
    config = BatchingConfig(size=size, unit=unit)
    order = generator(0, "order", epoch)
    return [s.tolist() for s in class_steps(rows, np.array(classes), lengths, config, order)]


def is_usable(step: list[int], classes: list[int]) -> bool:
    counts = np.unique([classes[row] for row in {*step}], return_counts=True)[1]
    return len(counts) > 1 and bool(counts.max() > 1)


@pytest.mark.parametrize(
    ("classes", "size", "count"),
    [
        ([n for n in range(40) for _ in range(2)], 8, 10),
        ([n for n in range(200) for _ in range(2)], 16, 25),
        ([n for n in range(100) for _ in range(3)], 16, 20),
        ([n % 4 for n in range(64)], 16, 4),
    ],
)
def test_classes_of_like_size_fill_the_planned_steps_once(
    classes: list[int], size: int, count: int
) -> None:
    steps = steps_of(classes, size)
    assert len(steps) == count
    assert sorted(row for step in steps for row in step) == list(range(len(classes)))
    for step in steps:
        own = [classes[row] for row in step]
        assert min(own.count(each) for each in own) > 1


def test_a_small_class_is_repeated_for_the_steps_of_a_large_one() -> None:
    classes = [0] * 190 + [1] * 10
    steps = steps_of(classes, 8)
    assert len(steps) <= 200 / 6
    assert all(is_usable(step, classes) and len(step) <= 8 for step in steps)
    rows = [row for step in steps for row in step]
    assert sorted(row for row in rows if row < 190) == list(range(190))


@given(
    st.lists(st.integers(0, 8), min_size=3, max_size=40),
    st.integers(1, 40),
    st.sampled_from(["rows", "tokens"]),
    st.data(),
)
def test_every_step_is_usable_and_every_drawn_row_is_in_one(
    classes: list[int], size: int, unit: Unit, data: st.DataObject
) -> None:
    counts = np.unique(classes, return_counts=True)[1]
    assume(len(counts) > 1 and counts.max() > 1)
    rows = data.draw(st.lists(st.integers(0, len(classes) - 1), min_size=1, max_size=60))
    steps = steps_of(classes, size, unit=unit, drawn=np.array(rows))
    assert all(is_usable(step, classes) for step in steps)
    every = [row for step in steps for row in step]
    assert all(every.count(row) >= rows.count(row) for row in rows)


def test_epochs_have_other_steps_and_the_same_epoch_the_same() -> None:
    classes = [n // 4 for n in range(80)]
    assert steps_of(classes, 16) == steps_of(classes, 16)
    first = {frozenset(step) for step in steps_of(classes, 16)}
    assert first.isdisjoint(map(frozenset, steps_of(classes, 16, epoch=1)))


def test_a_row_drawn_twice_comes_after_the_other_rows_of_its_class() -> None:
    classes = [0] * 20 + [1] * 20
    steps = steps_of(classes, 8, drawn=np.tile(np.arange(40), 2))
    assert all(len({*step}) == len(step) for step in steps)
