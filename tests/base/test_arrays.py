"""Operations on arrays that several subpackages use."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.base.arrays import distinct


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_distinct_values_are_those_of_a_set_ascending(values: list[int]) -> None:
    found = distinct(np.array(values, np.int64))
    assert found.tolist() == sorted(set(values))
    assert found.dtype == np.int64
