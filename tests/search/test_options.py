from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.errors import QueryError
from sbert_search.search.options import Fusion, SearchOptions, require_queries


def test_keywords_replace_fields_and_unknown_ones_are_refused() -> None:
    options = SearchOptions(k=3, mode="hybrid", fusion=Fusion(dense_weight=0.7), min_score=0.2)
    assert options.with_keywords(None) == options
    changed = options.with_keywords(5, fusion=None, offset=2)
    assert (changed.k, changed.fusion, changed.offset) == (5, Fusion(), 2)
    assert (changed.mode, changed.min_score) == ("hybrid", 0.2)
    wrong: Any = {"moed": "dense"}
    with pytest.raises(TypeError, match="Unknown search option 'moed'; did you mean 'mode'"):
        options.with_keywords(None, **wrong)
    for name, meant in (("top_k", "k"), ("limit", "k"), ("filter", "where")):
        other: Any = {name: 3}
        with pytest.raises(TypeError, match=f"option '{name}'; did you mean '{meant}'"):
            options.with_keywords(None, **other)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"mode": "fuzzy"}, "Unknown mode 'fuzzy'; known: auto, dense, hybrid, lexical"),
        ({"k": 0}, "k is 0; it must be at least 1"),
        ({"offset": -1}, "offset is -1; it must be at least 0"),
        ({"min_score": float("nan")}, "min_score is NaN"),
        ({"rerank_depth": 20_000}, "rerank_depth is 20,000; it must be from 0 to 10,000"),
        ({"syntax": "operator"}, "Unknown syntax 'operator'; did you mean 'operators'"),
        ({"boost": ["year"]}, r"boost is 'year'; pass Boost\(COLUMN, WEIGHT\) or several"),
        ({"boost": 5}, r"boost is 5; pass Boost\(COLUMN, WEIGHT\) or several"),
        ({"fusion": "rrf"}, r"fusion is 'rrf'; pass Fusion\(METHOD\)"),
        ({"k": 1.5}, r"k is 1\.5; pass an integer"),
        ({"k": "1"}, "k is '1'; pass an integer"),
        ({"k": True}, "k is True; pass an integer"),
        ({"offset": 1.0}, r"offset is 1\.0; pass an integer"),
        ({"fuzzy": "a"}, "fuzzy is 'a'; pass an integer"),
        ({"rerank_depth": None}, "rerank_depth is None; pass an integer"),
        ({"min_score": "a"}, "min_score is 'a'; pass a number"),
        ({"diversity": None}, "diversity is None; pass a number"),
        ({"mode": None}, "Unknown mode None; known: auto"),
        ({"syntax": 5}, "Unknown syntax 5; known: operators"),
        ({"group_by": 5}, "group_by is 5; pass a text"),
        ({"group_size": 0}, "group_size is 0; it must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        SearchOptions(**setting)


def test_numbers_of_numpy_are_options() -> None:
    options = SearchOptions(k=np.int64(3), min_score=np.float32(0.5))  # type: ignore[arg-type]
    assert (options.k, options.min_score) == (3, 0.5)


def test_the_depth_covers_the_page_and_the_reranked_documents() -> None:
    assert SearchOptions(k=2, offset=3, rerank_depth=4).depth == 5
    assert SearchOptions(k=2, offset=3, rerank_depth=40).depth == 40


@pytest.mark.parametrize(
    ("queries", "message"),
    [("text", "pass a list of strings"), (["a", 3], "Query 2 is of type int"), ([" "], "is empty")],
)
def test_queries_without_text_are_refused(queries: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        require_queries(queries)


@given(
    st.builds(
        dict,
        k=st.integers(-2, 20_000),
        offset=st.integers(-2, 20_000),
        diversity=st.floats(-1, 2),
        group_by=st.sampled_from([None, "kind"]),
        group_size=st.integers(-1, 4),
    )
)
def test_only_orders_in_range_are_options(fields: dict[str, Any]) -> None:
    k, offset, size = fields["k"], fields["offset"], fields["group_size"]
    sound = k >= 1 and offset >= 0 and 0 <= fields["diversity"] <= 1 and size >= 1
    sound &= size == 1 or fields["group_by"] is not None
    if sound:
        options = SearchOptions(**fields)
        assert options.depth >= offset + k
        assert options.with_keywords(None) == options
    else:
        with pytest.raises(QueryError):
            SearchOptions(**fields)
