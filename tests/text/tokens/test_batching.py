import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.text.tokens.batching import token_batches


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 120))
def test_each_row_once_within_the_budget_longest_first(lengths: list[int], budget: int) -> None:
    batches = token_batches(lengths, budget)
    rows = [row for batch in batches for row in batch.tolist()]
    assert sorted(rows) == list(range(len(lengths)))
    assert [lengths[row] for row in rows] == sorted(lengths, reverse=True)
    for batch in batches:
        assert len(batch) == 1 or sum(lengths[row] for row in batch) <= budget


def test_equal_lengths_keep_their_order() -> None:
    (batch,) = token_batches(np.full(5, 3), 100)
    assert batch.tolist() == [0, 1, 2, 3, 4]


def test_rows_can_be_limited_too() -> None:
    assert [len(batch) for batch in token_batches([1] * 7, 100, most=3)] == [3, 3, 1]
    assert [len(batch) for batch in token_batches([0] * 7, 100, most=3)] == [3, 3, 1]


@pytest.mark.parametrize(("budget", "most", "name"), [(0, None, "budget"), (5, 0, "most")])
def test_a_limit_below_one_is_refused(budget: int, most: int | None, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is 0; it must be at least 1"):
        token_batches([1], budget, most=most)
