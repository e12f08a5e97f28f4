from __future__ import annotations

import io
import math
import random
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sbert_search.errors import CorpusError
from sbert_search.index.index import Index
from sbert_search.text.formats import spooled
from sbert_search.text.formats.rows import RawRow, Reject
from sbert_search.text.formats.spooled import read_spooled, write_batches, write_rows


def stored(tmp_path: Path, rows: Any) -> Path:
    path = tmp_path / "rows"
    with path.open("wb") as file:
        write_rows(file, rows, "rows", lambda n: None)
    return path


def read_back(tmp_path: Path, rows: Any) -> list[dict[str, object]]:
    read = list(read_spooled(stored(tmp_path, rows), "rows"))
    assert [row.source for row in read] == [f"rows:{n + 1}" for n in range(len(rows))]
    assert all(isinstance(row, RawRow) for row in read)
    return [
        {name: value for name, value in row.values.items() if value is not None}
        for row in read
        if isinstance(row, RawRow)
    ]


def test_values_keep_their_types(tmp_path: Path) -> None:
    time = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
    rows = [
        {
            "_id": "a",
            "text": "naïve \U0001f600",
            "n": 3,
            "x": 0.5,
            "ok": True,
            "day": date(2020, 2, 29),
        },
        {"_id": "b", "text": "", "n": -(2**63), "x": -math.inf, "ok": False, "at": time},
        {"text": "no id", "x": None},
    ]
    assert read_back(tmp_path, rows) == [rows[0], rows[1], {"text": "no id"}]


def test_nested_and_mixed_values_keep_their_types(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"_id": 1, "tags": ["a", 2], "mixed": "x", "big": 2**80},
        {"_id": "1", "tags": [], "mixed": 5, "more": {"a": {"b": None}}},
        {"_id": 2, "mixed": True, "more": {"c": 1}},
        {"_id": 3, "mixed": 1.5},
    ]
    assert read_back(tmp_path, rows) == rows


def test_lists_keep_the_types_of_their_values(tmp_path: Path) -> None:
    time = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
    rows: list[dict[str, object]] = [
        {"tags": ["a", "é"], "days": [date(2020, 2, 29)], "times": [time], "ok": [True]},
        {"tags": [], "days": [], "times": [time, time], "n": [2**63 - 1, None], "m": [1, 2.5]},
        {"tags": ["b"], "n": [], "m": [[1]]},
    ]
    assert read_back(tmp_path, rows) == rows


def test_a_value_that_is_not_a_number_is_missing(tmp_path: Path) -> None:
    rows = [{"text": "a", "x": math.nan, "s": "b"}, {"text": "b", "x": 1.0, "s": math.nan}]
    assert read_back(tmp_path, rows) == [{"text": "a", "s": "b"}, {"text": "b", "x": 1.0}]


def test_a_missing_value_of_pandas_is_missing(tmp_path: Path) -> None:
    rows = [{"text": "a", "n": pd.NA, "of": ["x", pd.NA]}, {"text": "b", "n": 3}]
    assert read_back(tmp_path, rows) == [{"text": "a", "of": ["x", None]}, {"text": "b", "n": 3}]


def test_a_time_that_is_none_is_missing(tmp_path: Path) -> None:
    none, time = np.datetime64("NaT"), datetime(2024, 5, 6, tzinfo=UTC)
    rows = [
        {"text": "a", "at": pd.NaT, "mixed": pd.NaT, "n": none, "of": [pd.NaT, none, "x"]},
        {"text": "b", "at": pd.Timestamp(time), "mixed": "yesterday", "n": none},
        {"text": "c", "at": pd.NaT, "mixed": 3, "n": np.datetime64(time.replace(tzinfo=None))},
    ]
    assert read_back(tmp_path, rows) == [
        {"text": "a", "of": [None, None, "x"]},
        {"text": "b", "at": time, "mixed": "yesterday"},
        {"text": "c", "mixed": 3, "n": time},
    ]


def test_the_type_of_a_time_does_not_depend_on_the_rows_beside_it(tmp_path: Path) -> None:
    time, day = datetime(2024, 5, 6, 7, 8, 9, 10), date(2024, 5, 6)
    rows = [
        {"time": time, "mixed": day, "other": "text"},
        {"time": pd.Timestamp(time), "mixed": time, "other": day},
        {"time": np.datetime64(time), "mixed": np.datetime64(day), "other": time},
        {"time": np.datetime64(time, "ns"), "other": np.datetime64("12024-05-06", "D")},
    ]
    of_utc = time.replace(tzinfo=UTC)
    assert [{**row, "time": row["time"]} for row in read_back(tmp_path, rows)] == [
        {"time": of_utc, "mixed": day, "other": "text"},
        {"time": of_utc, "mixed": time, "other": day},
        {"time": of_utc, "mixed": day, "other": time},
        {"time": of_utc, "other": "12024-05-06"},
    ]
    index = Index.build(
        [
            {"_id": str(n), "text": "x", "at": pd.Timestamp(time) if n == 5 else time}
            for n in range(1500)
        ],
        model="hashing:8",
    )
    assert (len(index), index.info().columns) == (1500, {"at": "timestamp"})


def test_numpy_values_are_plain_ones(tmp_path: Path) -> None:
    rows = [{"text": "a", "n": np.int64(3), "x": np.float32(0.5), "v": np.array([1.0, 2.0])}]
    assert read_back(tmp_path, rows) == [{"text": "a", "n": 3, "x": 0.5, "v": [1.0, 2.0]}]


@pytest.mark.parametrize("n", [1, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("skip", [0, 1, 1024, 1500, 2999])
def test_any_number_of_rows_can_be_skipped(tmp_path: Path, n: int, skip: int) -> None:
    path = stored(tmp_path, ({"_id": i, "text": f"text {i}"} for i in range(n)))
    read = list(read_spooled(path, "rows", skip=skip))
    assert [row.values["_id"] for row in read if isinstance(row, RawRow)] == list(range(skip, n))
    assert [row.source for row in read] == [f"rows:{i + 1}" for i in range(skip, n)]


def test_random_rows_come_back(tmp_path: Path) -> None:
    draw = random.Random(3)
    values: list[Any] = [
        None,
        0,
        -1,
        2**62,
        2**70,
        0.25,
        True,
        False,
        "",
        "text",
        [1, "a"],
        {"k": [None]},
        date(1999, 1, 1),
    ]
    for _ in range(50):
        names = [f"f{i}" for i in range(draw.randint(1, 5))]
        kinds = {name: draw.sample(values, draw.randint(1, 3)) for name in names}
        rows = [
            {name: draw.choice(kinds[name]) for name in names if draw.random() < 0.8}
            | {"text": "t"}
            for _ in range(draw.randint(1, 40))
        ]
        for read, row in zip(read_back(tmp_path, rows), rows, strict=True):
            expected = {name: value for name, value in row.items() if value is not None}
            assert read.keys() == expected.keys()
            for name, value in expected.items():
                mixed = value.isoformat() if isinstance(value, date) else value
                assert (type(read[name]), read[name]) in [(type(v), v) for v in (value, mixed)]


def test_rows_without_fields_are_rows(tmp_path: Path) -> None:
    assert read_back(tmp_path, [{}, {}]) == [{}, {}]


def test_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooled, "BLOCK_CHARS", 100)
    sizes: list[int] = []
    texts = ["x" * 30] * 9 + ["y" * 1000] + ["z"] * 2
    write_rows(io.BytesIO(), ({"text": text} for text in texts), "rows", sizes.append)
    assert sizes == [4, 4, 2, 2]


@pytest.mark.parametrize(
    "value", [b"x" * 40, ["x" * 20, b"y" * 20], {"a": {"b": "x" * 40}}, [0.5] * 5, np.zeros(5)]
)
def test_values_of_every_kind_count(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooled, "BLOCK_CHARS", 100)
    sizes: list[int] = []
    write_rows(io.BytesIO(), ({"v": value} for _ in range(7)), "rows", sizes.append)
    assert sizes == [3, 3, 1]


def test_bytes_beside_texts_are_texts(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": b"caf\xc3\xa9"}, {"text": b"\xff"}]
    assert [row["text"] for row in read_back(tmp_path, rows)] == ["a", "caf\xe9", "\udcff"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a"}, "b"], "rows:2: a row must be a dict or a Document, not of type str"),
        ([{"text": "a"}, {3: "b"}], "rows:2: the name of a field is 3; it must be a string"),
        ([{"text": "a", "o": object()}], "rows:1: a value of 'o' cannot be stored: it is of type"),
    ],
)
def test_a_row_that_cannot_be_stored_is_named(tmp_path: Path, rows: Any, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        stored(tmp_path, rows)


def test_a_lone_surrogate_rejects_its_row_only(tmp_path: Path) -> None:
    path = stored(tmp_path, [{"text": "a"}, {"text": "\ud800"}, {"text": "c"}])
    texts = [row.values["text"] for row in read_spooled(path, "rows") if isinstance(row, RawRow)]
    assert texts == ["a", "\ud800", "c"]  # `CorpusReader` rejects the second


def test_batches_of_a_table_are_cut_into_blocks(tmp_path: Path) -> None:
    sizes: list[int] = []
    table = pa.table({"text": [f"t{i}" for i in range(2500)], "n": range(2500)})
    path = tmp_path / "rows"
    with path.open("wb") as file:
        write_batches(file, table.to_batches(), sizes.append)
    assert sizes == [1024, 1024, 452]
    read = list(read_spooled(path, "rows", skip=2000))
    assert not any(isinstance(row, Reject) for row in read)
    assert [row.values["n"] for row in read if isinstance(row, RawRow)] == list(range(2000, 2500))


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_a_value_that_is_nested_very_deep_is_named(kind: str) -> None:
    value: object = 1
    for _ in range(5000):
        value = [value] if kind == "list" else {"a": value}
    rows: list[dict[str, object]] = [{"_id": "a", "text": "x"}, {"_id": "b", "m": value}]
    with pytest.raises(CorpusError, match=r"rows:2: .*nested too deep"):
        Index.build(rows)
