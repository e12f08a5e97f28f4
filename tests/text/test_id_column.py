"""Ids as a column: the rules of single ids hold, whatever the array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.errors import CorpusError
from sbert_search.text.fields import checked_id
from sbert_search.text.formats.rows import BadRow
from sbert_search.text.ids import id_column, numbered_ids

IDS = st.one_of(
    st.text(), st.integers(), st.none(), st.booleans(), st.floats(), st.just("x" * 1025)
)


@given(st.lists(IDS))
def test_a_column_follows_the_rules_of_single_ids(ids: list[Any]) -> None:
    expected: list[str] = []
    bad = {}
    for row, value in enumerate(ids):
        try:
            expected.append(checked_id(value, "id"))
        except BadRow as error:
            expected.append("")
            bad[row] = error.reason
    column, bad_rows = id_column(ids)
    assert column.to_pylist() == expected
    assert {row: error.reason for row, error in bad_rows.items()} == bad


@pytest.mark.parametrize(
    "ids",
    [
        np.array([3, 10]),
        np.array(["3", "10"]),
        np.array([3, "10"], object),
        pa.array([3, 10], pa.uint8()),
        pa.array(["3", "10"], pa.large_string()),
        iter([3, "10"]),
    ],
)
def test_arrays_give_texts(ids: Any) -> None:
    column, bad_rows = id_column(ids)
    assert (column.type, column.to_pylist(), bad_rows) == (pa.large_string(), ["3", "10"], {})


def test_nulls_are_bad_rows() -> None:
    for ids in (pa.array([1, None, 3]), pa.array(["1", None, "3"]), [1, None, 3]):
        column, bad_rows = id_column(ids)
        assert column.to_pylist() == ["1", "", "3"]
        assert list(bad_rows) == [1]


def test_ids_of_a_numpy_array_are_not_cut_at_a_nul() -> None:
    column, bad_rows = id_column(np.array(["a\0b", "c"]))
    assert column.to_pylist() == ["", "c"]
    assert "NUL" in bad_rows[0].reason


@pytest.mark.parametrize("ids", ["abc", 7, None, np.array("a"), np.array(7), np.array([["a"]])])
def test_what_is_no_list_is_refused(ids: Any) -> None:
    with pytest.raises(CorpusError, match="no list of ids"):
        id_column(ids)


def test_numbers_are_appended_to_a_prefix() -> None:
    assert numbered_ids("v:", 9, 11).to_pylist() == ["v:9", "v:10"]
