"""Rows in one batch and in any partition end in the same columns and documents."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random

import pytest

from sbert_search import Index, SearchEngine
from sbert_search.errors import CorpusError

Row = dict[str, object]
# The values of a column have one type. Integers may meet floats, and any list may be empty.
KINDS: dict[str, Callable[[Random], object]] = {
    "word": lambda r: r.choice("abc"),
    "int": lambda r: r.randrange(9),
    "number": lambda r: r.choice([r.randrange(9), r.randrange(9) / 2]),
    "flag": lambda r: r.random() < 0.5,
    "day": lambda r: date(2020, 1, r.randrange(1, 9)),
    "time": lambda r: datetime(2020, 1, 1, r.randrange(9), tzinfo=UTC),
}
LISTS = ("word", "int", "flag", "day", "time")


def value_of(column: str, r: Random) -> object:
    kind, _, is_list = column.partition(" ")
    if not is_list:
        return None if r.random() < 0.3 else KINDS[kind](r)
    return r.choice([None, [], [], [None], [KINDS[kind](r) for _ in range(2)]])


def contents(index: Index) -> dict[str, tuple[str, dict[str, object]]]:
    return {d.doc_id: (d.text, dict(d.metadata)) for d in index.documents()}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20))
def test_any_partition_of_rows_makes_the_same_index(seed: int, tmp_path: Path) -> None:
    r = Random(seed)
    columns = [*KINDS, *(f"{kind} list" for kind in LISTS)]
    rows: list[Row] = [
        {"_id": str(n), "text": f"w{n}", **{c: value_of(c, r) for c in columns}} for n in range(12)
    ]
    n_shards = 4 if seed % 4 == 0 else None
    whole = Index.build(rows, out=tmp_path / "whole", model="hashing:16", n_shards=n_shards)
    split = Index.create(tmp_path / "split", model="hashing:16", n_shards=n_shards)
    at = 0
    while at < len(rows):
        n = r.randrange(1, 4)
        (split.add if r.random() < 0.5 else split.upsert)(rows[at : at + n])
        at += n
        if r.random() < 0.2:
            split.compact()
    assert split.state.columns == whole.state.columns
    assert contents(split) == contents(whole)
    split.compact()
    assert contents(split) == contents(whole)


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("shards", [False, True])
def test_the_first_value_decides_the_type_of_a_column_of_empty_lists(
    kind: str, shards: bool, tmp_path: Path
) -> None:
    value = KINDS[kind](Random(0))
    rows: list[Row] = [{"_id": f"e{n}", "text": "mill", "c": []} for n in range(5)]
    n_shards = 4 if shards else None
    index = Index.build(rows, out=tmp_path / "i", model="hashing:16", n_shards=n_shards)
    assert index.state.columns == {"c": "list[string]"}
    index.add([{"_id": "v", "text": "river", "c": [value]}])
    literal = f"'{value}'" if not isinstance(value, bool | int) else str(value)
    engine = SearchEngine(index)
    for _ in range(2):
        assert [d.doc_id for d in index.documents(f"{literal} IN c")] == ["v"]
        assert {d.doc_id for d in index.documents(f"NOT {literal} IN c")} == {
            row["_id"] for row in rows
        }
        assert list(engine.facets("river mill", ["c"])["c"].counts.values()) == [1]
        index.compact()
        engine.refresh()
    held = index.state.columns["c"]
    wrong: list[object] = [["x"]] if kind != "word" else [[5]]
    with pytest.raises(CorpusError) as refused:
        index.add([{"_id": "w", "text": "oven", "c": wrong[0]}])
    assert held in str(refused.value) or held[5:-1] in str(refused.value)


def test_texts_in_lists_stay_texts(tmp_path: Path) -> None:
    index = Index.build(
        [{"_id": "a", "text": "mill", "c": ["x"]}], out=tmp_path / "i", model="hashing:16"
    )
    with pytest.raises(
        CorpusError, match=r"'c' is of type list\[string\], this value is of type list\[int64\]"
    ):
        index.add([{"_id": "b", "text": "river", "c": [5]}])
