"""Boosts by hand, and what they refuse."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import QueryError
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import Boost

NOW = datetime(2024, 3, 1, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {
        "_id": "a",
        "text": "red fish",
        "views": 0,
        "day": date(2024, 3, 1),
        "kind": "x",
        "sold": True,
    },
    {
        "_id": "b",
        "text": "red fish blue bird",
        "views": 99,
        "day": date(2024, 2, 20),
        "sold": False,
    },
    {"_id": "c", "text": "red cat dog tree", "views": -5, "day": date(2025, 1, 1)},
    {"_id": "d", "text": "bird dog tree house"},
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    out = tmp_path_factory.mktemp("boosts") / "i"
    return SearchEngine(Index.build(ROWS, out=out, model=HashingEmbedder()))


@pytest.mark.parametrize(
    ("boost", "gains"),
    [
        (Boost("views", 0.2), {"b": 0.2 * math.log(100)}),
        (Boost("views", 0.01, "linear"), {"b": 0.99, "c": -0.05}),
        (Boost("sold", 0.3, "linear"), {"a": 0.3}),
        (Boost("views", -0.01, "linear"), {"b": -0.99, "c": 0.05}),
        (Boost("day", 0.4, "recency", 10, NOW), {"a": 0.4, "b": 0.2, "c": 0.4}),
    ],
    ids=str,
)
def test_the_gain_of_a_value_is_added_to_the_score(
    engine: SearchEngine, boost: Boost, gains: dict[str, float]
) -> None:
    plain = {hit.doc_id: hit.score for hit in engine.search("red fish zebra", mode="dense")}
    hits = engine.search("red fish zebra", mode="dense", boost=boost)
    expected = {i: s + gains.get(i, 0.0) for i, s in plain.items()}
    assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(expected)
    for rank, hit in enumerate(hits, 1):
        assert (hit.stages["boost"].rank, hit.stages["boost"].score) == (rank, hit.score)
        assert hit.stages["dense"].score == plain[hit.doc_id]
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)


def test_without_now_ages_are_those_of_today(tmp_path: Path) -> None:
    today = datetime.now(UTC)
    rows = [{"_id": str(n), "text": "red", "t": today - timedelta(days=n)} for n in range(3)]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model=HashingEmbedder()))
    hits = engine.search("red", mode="dense", boost=Boost("t", 1.0, "recency", half_life_days=1))
    assert [hit.score for hit in hits] == pytest.approx([2.0, 1.5, 1.25], abs=1e-2)


@pytest.mark.parametrize(
    ("boost", "message"),
    [
        (Boost("vews"), "Unknown metadata column 'vews'; did you mean 'views'"),
        (Boost("kind"), "The column 'kind' is string; a log boost needs a column of numbers"),
        (Boost("day", 1.0, "linear"), "'day' is date; a linear boost needs a column of numbers"),
        (Boost("views", 1.0, "recency", 3), "'views' is int64; a recency boost needs .* dates"),
    ],
    ids=str,
)
def test_a_column_that_does_not_suit_is_refused(
    engine: SearchEngine, boost: Boost, message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        engine.search("red", boost=[boost])


@pytest.mark.parametrize(
    ("text", "boost"),
    [
        ("views:log:0.2", Boost("views", 0.2)),
        ("a:b:linear:-1", Boost("a:b", -1.0, "linear")),
        ("day:recency:0.5:30", Boost("day", 0.5, "recency", 30.0)),
    ],
)
def test_a_boost_is_read_from_text(text: str, boost: Boost) -> None:
    assert Boost.parse(text) == boost


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("views", "'views' is not a boost; write COLUMN:log:WEIGHT"),
        ("views:log:much", "is not a boost"),
        ("views:log:0.2:x", "is not a boost"),
        ("views:lgo:0.2", "Unknown kind of boost 'lgo'; did you mean 'log'"),
        ("views:log:inf", "weight of a boost is inf"),
        ("views:log:1:3", "half_life_days and now are for a boost by recency, not by log"),
        ("day:recency:1", "half_life_days is None; .* above 0"),
        ("day:recency:1:0", r"half_life_days is 0\.0"),
        ("day:recency:1:nan", "half_life_days is nan"),
    ],
)
def test_what_is_no_boost_is_refused(text: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        Boost.parse(text)


@pytest.mark.thorough
@given(st.text(max_size=20))
def test_any_text_is_a_boost_or_refused(text: str) -> None:
    with contextlib.suppress(QueryError):
        assert Boost.parse(text).column in text


def test_scores_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    rows = [{"_id": str(n), "text": "red", "big": 1e308 * n} for n in range(2)]
    engine = SearchEngine(Index.build(rows, out=tmp_path / "i", model=HashingEmbedder()))
    message = "The boost of 'big' by 10 gives scores that are not finite; use a smaller weight"
    with pytest.raises(QueryError, match=message):
        engine.search("red", boost=[Boost("big", 10, "linear"), Boost("big", -10, "linear")])
    assert len(engine.search("red", boost=[Boost("big", 1, "linear")])) == 2
    with pytest.raises(QueryError, match="weight of a boost is '1'; it must be a finite number"):
        Boost("big", "1")  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="weight of a boost is 1000"):
        Boost("big", 10**400)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"half_life_days": "3"}, "half_life_days is '3'; .* a number of days"),
        ({"half_life_days": 3, "now": "2024-05-01"}, "now is '2024-05-01'; pass a datetime"),
    ],
)
def test_times_of_other_types_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        Boost("day", 1.0, "recency", **given)
