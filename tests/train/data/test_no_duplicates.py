"""Rows that share a key never share a step."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.train.data.grouping import TextKeys, without_duplicates

Keys = list[set[int]]


def steps_of(keys: Keys, size: int) -> list[list[int]]:
    rows = np.arange(len(keys))
    steps = [rows[start : start + size] for start in range(0, len(rows), size)]
    own = keys.__getitem__
    return [step.tolist() for step in without_duplicates(steps, own, own)]


def test_a_row_waits_for_the_next_step() -> None:
    keys = [{1}, {2}, {1}, {3}, {4}, {5}]
    assert steps_of(keys, 3) == [[0, 1, 3], [2, 4, 5]]


def test_steps_become_smaller_and_rows_that_would_be_alone_are_left_out() -> None:
    keys = [{1}, {2}, {3}, {4}, {1}, {2}, {1}, {1}]
    assert steps_of(keys, 4) == [[0, 1, 2, 3], [4, 5]]
    assert steps_of([*keys[:4], {1}], 4) == [[0, 1, 2, 3], [4]]  # as planned
    assert steps_of([{1}, {1}, {2}, {3}, {4}, {5}, {1}, {2}], 8)[1:] == []  # 3 rows are left
    answers = [{n % 4, 4 + n} for n in range(400)]  # 400 questions with 4 answers
    assert [len(step) for step in steps_of(answers, 32)] == [4] * 99
    assert steps_of([{1}, {1}, {1}], 3) == [[0]]  # there is always one step


@given(st.lists(st.sets(st.integers(0, 8), min_size=1, max_size=3), min_size=1), st.integers(1, 6))
def test_no_key_twice_in_a_step_and_no_row_twice(keys: Keys, size: int) -> None:
    steps = steps_of(keys, size)
    assert steps[0]
    for step in steps:
        own = [key for row in step for key in keys[row]]
        assert len(own) == len(set(own))
        assert len(step) <= size
    rows = [row for step in steps for row in step]
    assert len(rows) == len(set(rows))


@given(st.lists(st.sets(st.integers(0, 8), min_size=1, max_size=3), min_size=1), st.integers(1, 6))
def test_a_step_takes_the_first_rows_that_fit(keys: Keys, size: int) -> None:
    left = list(range(len(keys)))
    for step in steps_of(keys, size):
        expected: list[int] = []
        for row in left:
            if len(expected) < size and all(
                keys[row].isdisjoint(keys[other]) for other in expected
            ):
                expected.append(row)
        assert step == expected[: len(step)]  # a later planned step can be smaller than `size`
        left = [row for row in left if row not in step]


def test_rows_without_a_common_key_stay_as_they_are() -> None:
    keys = [{n} for n in range(7)]
    assert steps_of(keys, 3) == [[0, 1, 2], [3, 4, 5], [6]]


def test_many_copies_of_one_row_do_not_take_forever() -> None:
    keys: Keys = [{0}] * 20_000
    assert steps_of(keys, 64) == [[0]]
    assert len(steps_of([{n % 2} for n in range(20_000)], 64)) == 10_000 - 7


def conflicts(texts: list[list[int]], groups: list[int], one: int, other: int) -> bool:
    """Whether a text of one row equals one of the other, or is a positive of the other's anchor."""
    positive = {(row[0], row[1]) for row in texts}
    members = {
        (group, text)
        for row, group in zip(texts, groups, strict=True)
        for text in row[:2]
        if group >= 0
    }
    for a, b in ((one, other), (other, one)):
        if any((texts[a][0], text) in positive for text in texts[b][1:]):
            return True
        if any((groups[a], text) in members for text in texts[b]):
            return True
    return bool({*texts[one]} & {*texts[other]})


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(-1, 2)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_no_step_has_a_positive_of_another_row_as_its_negative(
    rows: list[tuple[list[int], int]], size: int
) -> None:
    texts, groups = [row[0] for row in rows], [row[1] for row in rows]
    keys = TextKeys(np.array(texts), np.array(groups))
    numbers = np.arange(len(rows))
    steps = [numbers[start : start + size] for start in range(0, len(rows), size)]
    for step in without_duplicates(steps, keys.own, keys.excluded):
        for place, one in enumerate(step.tolist()):
            assert not any(conflicts(texts, groups, one, other) for other in step[:place].tolist())


def test_a_negative_that_is_a_positive_in_another_row_waits() -> None:
    """Row 0 has the negative 5; row 1 and row 2 have the anchor 3, of which 5 is a positive."""
    texts = np.array([[0, 1, 5], [3, 4, -1], [3, 5, -1], [6, 7, -1]])
    keys = TextKeys(texts, np.full(4, -1))
    steps = without_duplicates([np.arange(4)], keys.own, keys.excluded)
    assert [step.tolist() for step in steps] == [[0, 3]]
    assert keys.own(1) == {3, 4}
    assert keys.excluded(1) == {3, 4, 5}


def test_anchors_with_one_positive_need_no_further_keys() -> None:
    texts = np.array([[n, 100] for n in range(50)])
    keys = TextKeys(texts, np.full(50, -1))
    assert keys.excluded(7) == keys.own(7) == {7, 100}
