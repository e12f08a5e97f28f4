from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pytest

from sbert_search.index.storage.manifest import ColumnType
from sbert_search.lab.map.record import NumberColumn, TextColumn, gather
from sbert_search.records import MetadataValue


def column(kind: ColumnType, *values: MetadataValue) -> NumberColumn | TextColumn:
    [made], left_out = gather([{"c": v} if v is not None else {} for v in values], {"c": kind})
    assert left_out == []
    return made


def texts_of(made: NumberColumn | TextColumn) -> list[list[str]]:
    assert isinstance(made, TextColumn)
    borders = list(zip(made.starts[:-1], made.starts[1:], strict=True))
    return [[made.values[code] for code in made.codes[a:b]] for a, b in borders]


@pytest.mark.parametrize(
    ("kind", "value", "number"),
    [
        ("int64", -3, -3.0),
        ("float64", 0.5, 0.5),
        ("date", date(1970, 1, 3), 172_800_000.0),
        ("timestamp", datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), 2000.0),
        # The float64 of the seconds, times 1000, is ...841.2349.
        ("timestamp", datetime(2024, 2, 1, 12, 4, 56, 841235, tzinfo=UTC), 1706789096841.235),
    ],
)
def test_numbers_dates_and_times(kind: ColumnType, value: MetadataValue, number: float) -> None:
    made = column(kind, value, None)
    assert isinstance(made, NumberColumn)
    np.testing.assert_array_equal(made.numbers, [number, np.nan])


def test_integers_that_a_page_would_round_are_texts() -> None:
    assert texts_of(column("int64", 2**53 + 1, 5)) == [["9007199254740993"], ["5"]]
    assert isinstance(column("int64", 2**53, 5), NumberColumn)


def test_an_empty_list_is_a_value_and_long_values_are_whole() -> None:
    made = column("list[string]", [], None, ["x" * 500])
    assert isinstance(made, TextColumn)
    assert made.missing.tolist() == [1]
    assert texts_of(made) == [[], [], ["x" * 500]]


def test_values_are_ordered_by_their_number_of_documents() -> None:
    made = column("string", "b", "a", None, "b")
    assert isinstance(made, TextColumn)
    assert made.values == ["b", "a"]
    assert texts_of(made) == [["b"], ["a"], [], ["b"]]


@pytest.mark.parametrize(
    ("kind", "value", "texts"),
    [
        ("bool", True, ["true"]),
        ("list[string]", ["x", "y", "x"], ["x", "y"]),
        ("list[int64]", [2, 1], ["2", "1"]),
        ("list[bool]", [False], ["false"]),
        ("list[date]", [date(2024, 2, 3)], ["2024-02-03"]),
        ("list[timestamp]", [datetime(2024, 2, 3, 4, 5, tzinfo=UTC)], ["2024-02-03T04:05:00Z"]),
        (
            "list[timestamp]",
            [datetime(2024, 2, 3, 4, 5, 6, 7, tzinfo=UTC)],
            ["2024-02-03T04:05:06.000007Z"],
        ),
    ],
)
def test_flags_and_lists_are_texts(
    kind: ColumnType, value: MetadataValue, texts: list[str]
) -> None:
    made = column(kind, value, None)
    assert texts_of(made) == [texts, []]
    assert isinstance(made, TextColumn)
    assert made.kind == kind
    assert made.missing.tolist() == [1]


def test_too_long_texts_are_cut_and_left_out_if_they_are_still_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sbert_search.lab.map.record.MOST_CHARACTERS", 10)
    monkeypatch.setattr("sbert_search.lab.map.record.CUT", 4)
    cut = column("list[string]", ["012345", "012389"], None, ["0123", "abc"])
    assert texts_of(cut) == [["0123"], [], ["0123", "abc"]]
    assert isinstance(cut, TextColumn)
    assert cut.is_cut
    whole = column("string", "0123456789")
    assert texts_of(whole) == [["0123456789"]]
    assert isinstance(whole, TextColumn)
    assert not whole.is_cut
    values = [{"long": f"{number}2345", "short": "x"} for number in range(3)]
    columns, left_out = gather(values, {"long": "string", "short": "string"})
    assert [each.name for each in columns] == ["short"]
    assert left_out == ["long"]
