"""Python values of Arrow columns."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from sbert_search.text.formats.columnar import readable
from sbert_search.text.formats.rows import BadRow

NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)


def _dictionary(kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), pa.array(["a", "b"], kind))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([[NOON], [], None], pa.list_(pa.timestamp("ns"))), [[NOON], [], None]),
        (pa.array([[NOON]], pa.large_list(pa.timestamp("s", "Asia/Tokyo"))), [[NOON]]),
        (pa.array([[1.5, float("nan"), None]]), [[1.5, None, None]]),
        (pa.array([["a"], ["b", "c"], [], ["d"]]).slice(1, 2), [["b", "c"], []]),
        (pa.array([[["a"], []], None]), [[["a"], []], None]),
        (
            pa.array([["a", "b"]]).cast(pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            [["a", "b"]],
        ),
        (pa.array([[b"a"]]), [["a"]]),
        (pa.array(["a", None], pa.string_view()), ["a", None]),
        (pa.array([b"a", None, b"\xff"], pa.binary_view()), ["a", None, "\udcff"]),
        (_dictionary(pa.string_view()), ["b", None, "a"]),
        (_dictionary(pa.binary_view()), ["b", None, "a"]),
        (pa.array([uuid.UUID(int=5).bytes, None], pa.uuid()), [str(uuid.UUID(int=5)), None]),
        (pa.array([[date(2024, 1, 31)]]), [[date(2024, 1, 31)]]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], [3, 4]]),
        (
            pa.array([[0.5], None, [float("nan")]], pa.list_(pa.float64(), 1)).slice(1),
            [None, [None]],
        ),
    ],
)
def test_lists_have_the_values_that_columns_have(column: pa.Array, values: list[object]) -> None:
    bad: dict[int, BadRow] = {}
    assert readable(column, "n", 0, bad) == values
    assert not bad


def test_a_time_that_python_cannot_hold_rejects_only_its_row() -> None:
    column = pa.array([[0], [2**62], [1]], pa.list_(pa.timestamp("us", "UTC")))
    bad: dict[int, BadRow] = {}
    values = readable(column, "n", 0, bad)
    assert values[::2] == [
        [datetime(1970, 1, 1, tzinfo=UTC)],
        [datetime(1970, 1, 1, 0, 0, 0, 1, UTC)],
    ]
    assert list(bad) == [1]
    assert "column 'n' cannot be read" in bad[1].reason


def test_a_struct_with_text_that_is_not_utf8_rejects_only_its_row() -> None:
    texts = pa.array([b"fine", b"caf\xe9", b"too"], pa.binary())
    as_text = pa.Array.from_buffers(pa.string(), 3, texts.buffers())
    bad: dict[int, BadRow] = {}
    values = readable(pa.StructArray.from_arrays([as_text], ["a"]), "n", 0, bad)
    assert values == [{"a": "fine"}, None, {"a": "too"}]
    assert list(bad) == [1]
    assert "column 'n' cannot be read: 'utf-8' codec" in bad[1].reason
