"""Facets by hand, and against counting in Python after updates."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import NoLexicalData, QueryError
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.search.facets import Facet, FacetRange

ROWS: list[dict[str, Any]] = [
    {"_id": "1", "text": "red fish", "kind": "a", "n": 1, "tags": ["x", "y", "x"]},
    {"_id": "2", "text": "red bird", "kind": "b", "n": 4, "tags": ["y"]},
    {"_id": "3", "text": "blue bird", "kind": "b", "n": 11},
    {"_id": "4", "text": "a red cat", "kind": "c", "n": 4, "day": date(2024, 1, 31)},
    {"_id": "5", "text": "green dog"},
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    out = tmp_path_factory.mktemp("facets") / "i"
    return SearchEngine(Index.build(ROWS, out=out, model=HashingEmbedder()), "no-such/model")


def test_zeros_of_both_signs_are_one_value(tmp_path: Path) -> None:
    values = [0.0, -0.0, -0.0, 1.5]
    rows = [{"_id": str(n), "text": "red", "v": v, "w": [v]} for n, v in enumerate(values)]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model=HashingEmbedder()))
    for facet in engine.facets(None, ["v", "w"]).values():
        assert facet.counts == {0.0: 3, 1.5: 1}
    assert len(engine.search("red", 10, group_by="v")) == 2


@pytest.mark.parametrize("n", [0, 1.5, "2"])
def test_a_number_of_values_is_an_integer(engine: SearchEngine, n: Any) -> None:
    with pytest.raises(QueryError, match="count at least 1 value of a facet"):
        engine.facets(None, "kind", n=n)


def test_all_matches_count_and_not_only_those_returned(engine: SearchEngine) -> None:
    every = engine.facets(None, ["kind", "tags", "day"])
    assert every["kind"] == Facet("kind", {"b": 2, "a": 1, "c": 1}, other=0, missing=1, total=5)
    assert every["tags"] == Facet("tags", {"y": 2, "x": 1}, other=0, missing=3, total=5)
    day = date(2024, 1, 31)
    assert every["day"] == Facet("day", {day: 1}, other=0, missing=4, low=day, high=day, total=5)
    assert engine.facets("reds", "kind")["kind"].counts == {"a": 1, "b": 1, "c": 1}
    assert engine.facets("reds", "kind", mode="dense")["kind"].counts == every["kind"].counts
    assert engine.facets("red -bird", "kind")["kind"].counts == {"a": 1, "c": 1}
    assert engine.facets("dog +bird", "kind")["kind"].counts == {"b": 2}
    assert engine.facets("reds", "kind", where="n > 1")["kind"].counts == {"b": 1, "c": 1}
    assert engine.facets("gref rad", "kind", fuzzy=1)["kind"].counts == {"a": 1, "b": 1, "c": 1}
    assert engine.facets("dog +bord", "kind", fuzzy=1)["kind"].counts == {"b": 2}
    assert engine.facets("zebra", "kind")["kind"] == Facet("kind", {}, other=0, missing=0)


def test_matches_are_counted_by_words_unless_the_search_is_dense(engine: SearchEngine) -> None:
    assert engine.count() == 5
    assert engine.count(where="n > 1") == 3
    assert engine.count("reds") == engine.count("reds", mode="lexical") == 3
    assert engine.count("reds", mode="dense") == 5
    assert engine.count("reds", mode="dense", where="n > 1") == 3
    assert engine.count("red -bird") == 2
    assert engine.count("rad", fuzzy=1) == 3
    assert engine.count("zebra") == 0
    for query in ("reds", None):
        assert engine.facets(query, "tags")["tags"].total == engine.count(query)
    with pytest.raises(QueryError, match="The query is empty"):
        engine.count(" ")


def test_segments_without_a_value_count_as_missing(tmp_path: Path) -> None:
    model = HashingEmbedder(8)
    index = Index.build([{"_id": "1", "text": "red"}], out=tmp_path / "i", model=model)
    for row in ({"_id": "2", "text": "red", "kind": "a"}, {"_id": "3", "text": "blue"}):
        index.add([row], model=model)
    assert len(index.state.segments) == 3
    engine = SearchEngine(index, model)
    counted = engine.facets(None, "kind")["kind"]
    assert counted == Facet("kind", {"a": 1}, other=0, missing=2, total=3)
    groups = {hit.doc_id: hit.metadata.get("kind") for hit in engine.search("red", group_by="kind")}
    assert groups == {"1": None, "2": "a", "3": None}


def test_numbers_have_limits_and_ranges(engine: SearchEngine) -> None:
    assert engine.facets(None, "n")["n"] == Facet("n", {4: 2, 1: 1, 11: 1}, 0, 1, 1, 11, total=5)
    ranges = (FacetRange(1, 6, 3), FacetRange(6, 11, 1))
    assert engine.facets(None, "n", n=2)["n"] == Facet("n", {4: 2, 1: 1}, 1, 1, 1, 11, ranges, 5)


def test_ranges_of_floats_have_equal_widths(tmp_path: Path) -> None:
    rows = [{"_id": f"{x}", "text": "red", "x": x} for x in (-1.0, 0.5, 1.0, 1.5, 3.0)]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model=HashingEmbedder(8)))
    facet = engine.facets(None, "x", n=2)["x"]
    assert (facet.low, facet.high, facet.other) == (-1.0, 3.0, 3)
    assert facet.ranges == (FacetRange(-1.0, 1.0, 2), FacetRange(1.0, 3.0, 3))


def test_large_integers_and_a_later_float_count_together(tmp_path: Path) -> None:
    model = HashingEmbedder(8)
    index = Index.build([{"_id": "1", "text": "red", "n": 10**16}], out=tmp_path / "i", model=model)
    index.add([{"_id": "2", "text": "red", "n": 1.5}], model=model)
    engine = SearchEngine(index, model)
    assert engine.facets(None, "n")["n"].counts == {1e16: 1, 1.5: 1}
    assert len(engine.search("red", group_by="n")) == 2


def test_one_range_may_be_wider_than_the_largest_float(tmp_path: Path) -> None:
    rows = [{"_id": f"{x}", "text": "red", "x": x} for x in (-1.7e308, 1.79e308)]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model=HashingEmbedder(8)))
    assert engine.facets(None, "x", n=1)["x"].ranges == (FacetRange(-1.7e308, 1.79e308, 2),)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"columns": "knd"}, "Unknown metadata column 'knd'; did you mean 'kind'"),
        ({"columns": "kind", "n": 0}, "n is 0; count at least 1"),
        ({"columns": "kind", "n": True}, "n is True; count at least 1"),
        ({"columns": "kind", "query": " "}, "The query is empty"),
        ({"columns": "kind", "where": "x > 1"}, "Unknown column 'x'"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    engine: SearchEngine, ask: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        engine.facets(**{"query": "red", **ask})


def test_words_need_lexical_data(tmp_path: Path) -> None:
    built = BuildSettings(lexical=None)
    index = Index.build(ROWS, out=tmp_path / "i", model=HashingEmbedder(), settings=built)
    engine = SearchEngine(index)
    assert engine.facets("red", "kind")["kind"].missing == 1
    with pytest.raises(NoLexicalData):
        engine.facets("red", "kind", mode="lexical")


@pytest.mark.parametrize("seed", range(2))
def test_counts_are_those_of_a_plain_reading_after_updates(tmp_path: Path, seed: int) -> None:
    rng, embedder = random.Random(seed), HashingEmbedder(max_len=6)
    words = ["red", "green", "blue", "fish", "bird"]

    def some(numbers: range) -> list[dict[str, Any]]:
        rows = []
        for number in numbers:
            row = {
                "_id": str(number),
                "text": " ".join(rng.choices(words, k=rng.randint(1, 15))),
                "kind": rng.choice([*"abcdefgh", None]),
                "n": rng.choice([None, *range(9)]),
                "t": rng.choice([None, datetime(2024, rng.randint(1, 12), 1, tzinfo=UTC)]),
                "tags": rng.choices("uvw", k=rng.randint(0, 3)),
            }
            rows.append({name: value for name, value in row.items() if value not in (None, [])})
        return rows

    built = BuildSettings(on_truncate="chunk")
    index = Index.build(some(range(60)), out=tmp_path / "i", model=embedder, settings=built)
    index.upsert(some(range(40, 90)), model=embedder)
    index.delete([str(number) for number in rng.sample(range(90), 15)])
    engine = SearchEngine(index)
    documents = list(index.state.iter_documents())
    for query, where in ((None, None), ("red", None), ("green bird", "n < 6")):
        matching = [
            document.metadata
            for document in documents
            if (query is None or set(query.split()) & set(document.text.split()))
            and (where is None or document.metadata.get("n") in range(6))
        ]
        found = engine.facets(query, ["kind", "n", "t", "tags"], where=where, n=3)
        for column, facet in found.items():
            values: list[Any] = [m[column] for m in matching if m.get(column) is not None]
            counts: Counter[Any] = Counter(
                v for value in values for v in (set(value) if column == "tags" else [value])
            )
            best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]
            assert list(facet.counts.items()) == best
            assert facet.other == sum(counts.values()) - sum(count for _, count in best)
            assert facet.missing == len(matching) - len(values)
            if column not in ("n", "t"):
                assert facet.ranges == ()
                continue
            assert (facet.low, facet.high) == (min(counts), max(counts))
            ranges: Any = facet.ranges
            inside = [sum(c for v, c in counts.items() if r.low <= v < r.high) for r in ranges]
            inside[-1] += counts[facet.high]
            assert inside == [r.count for r in ranges]


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    st.one_of(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12),
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12),
        st.lists(st.dates(), min_size=1, max_size=12),
    ),
    st.integers(1, 5),
)
def test_ranges_hold_every_value_once(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], n: int
) -> None:
    rows = [{"_id": str(i), "text": "x y", "v": value} for i, value in enumerate(values)]
    out = tmp_path_factory.mktemp("ranges") / "i"
    engine = SearchEngine(Index.build(rows, out=out, model=HashingEmbedder(8)))
    facet = engine.facets(None, "v", n=n)["v"]
    assert (facet.low, facet.high) == (min(values), max(values))
    if len(set(values)) <= n:
        assert facet.ranges == ()
        return
    assert sum(r.count for r in facet.ranges) == len(values)
    assert (facet.ranges[0].low, facet.ranges[-1].high) == (facet.low, facet.high)
    ranges: Any = facet.ranges
    for one, following in pairwise(ranges):
        assert one.high == following.low
        assert one.count == sum(one.low <= value < one.high for value in values)


def test_the_ends_of_ranges_have_few_digits(tmp_path: Path) -> None:
    prices = [19.95, *(20 + 0.37 * n for n in range(30)), 3299.0]
    for scale in (1.0, 1e-200, 1e300):
        rows = [{"_id": str(i), "text": "x", "p": p * scale} for i, p in enumerate(prices)]
        index = Index.build(rows, out=tmp_path / f"i{scale}", model="hashing")
        ranges = SearchEngine(index).facets(None, "p")["p"].ranges
        assert sum(one.count for one in ranges) == len(prices)
        lows = [one.low for one in ranges]
        assert lows == sorted(lows)
        assert all(len(repr(low)) < 13 for low in lows[1:]), lows


@pytest.mark.parametrize(
    ("column", "ranges"),
    [
        ("price:0:50:100", [(0.0, 50.0, 2), (50.0, 100.0, 1), (100.0, 3299.0, 2)]),
        ("price:20:1e4", [(9.5, 20.0, 1), (20.0, 1e4, 4), (1e4, 1e4, 0)]),
        ("price:200:300", [(9.5, 200.0, 4), (200.0, 300.0, 0), (300.0, 3299.0, 1)]),
        ("price:0:1:3299", [(0.0, 1.0, 0), (1.0, 3299.0, 4), (3299.0, 3299.0, 1)]),
        ("n:2:4", [(1, 2, 1), (2, 4, 2), (4, 5, 2)]),
        (
            "day:2024-01-02",
            [(date(2024, 1, 1), date(2024, 1, 2), 1), (date(2024, 1, 2), date(2024, 1, 5), 4)],
        ),
        (
            "seen:2024-01-02",
            [
                (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC), 1),
                (datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 5, 12, tzinfo=UTC), 4),
            ],
        ),
        (
            "seen:2024-01-02T12:00:00Z:2024-01-03 12:30:2024-01-04",
            [
                (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 2, 12, tzinfo=UTC), 1),
                (datetime(2024, 1, 2, 12, tzinfo=UTC), datetime(2024, 1, 3, 12, 30, tzinfo=UTC), 2),
                (datetime(2024, 1, 3, 12, 30, tzinfo=UTC), datetime(2024, 1, 4, tzinfo=UTC), 0),
                (datetime(2024, 1, 4, tzinfo=UTC), datetime(2024, 1, 5, 12, tzinfo=UTC), 2),
            ],
        ),
        ("odd:1:2", []),  # a column of this name
    ],
)
def test_ranges_of_ones_own_have_each_value_once(
    priced: SearchEngine, column: str, ranges: list[Any]
) -> None:
    [(name, facet)] = priced.facets(None, column).items()
    assert name == facet.column == ("odd:1:2" if column == "odd:1:2" else column.split(":")[0])
    assert [(one.low, one.high, one.count) for one in facet.ranges] == ranges


def test_ranges_of_ones_own_are_there_without_a_match(priced: SearchEngine) -> None:
    facet = priced.facets("zebra", "n:2:4")["n"]
    assert (facet.low, facet.ranges) == (None, (FacetRange(2, 4, 0), FacetRange(4, 4, 0)))


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    rows = [
        {
            "_id": str(n),
            "text": "red",
            "price": price,
            "n": n,
            "day": date(2024, 1, n),
            "seen": datetime(2024, 1, n, 12, tzinfo=UTC),
            "odd:1:2": "x",
            "kind": "x",
        }
        for n, price in enumerate((9.5, 49.99, 50.0, 100.0, 3299.0), 1)
    ]
    out = tmp_path_factory.mktemp("priced") / "i"
    return SearchEngine(Index.build(rows, out=out, model=HashingEmbedder(8)))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("price:50:0", "50:0 are no ascending values of float64; write price:0:50:100"),
        ("price:cheap", "cheap are no ascending values of float64"),
        ("seen:12:00", "12:00 are no ascending values of timestamp"),
        ("n:0.5", "0.5 are no ascending values of int64"),
        ("kind:0:1", "0:1 are no ascending values of string"),
        ("prize:0:1", "Unknown metadata column 'prize'; did you mean 'price'"),
    ],
)
def test_wrong_ranges_are_refused(priced: SearchEngine, column: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        priced.facets(None, column)


def test_a_column_is_counted_in_one_way(priced: SearchEngine) -> None:
    assert list(priced.facets(None, ["n", "n"])) == ["n"]
    with pytest.raises(QueryError, match="price:0:50, price name a column twice"):
        priced.facets(None, ["price:0:50", "price"])
