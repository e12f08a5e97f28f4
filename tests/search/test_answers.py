"""How the queries of a block are divided, so that the texts of their hits fit into memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.search.fusion import Ranking
from sbert_search.search.hits import scores_by_id, within_memory
from sbert_search.search.retrieval import Retrieved
from tests.limits import memory_limited

KIB = 1024
ROWS = [{"_id": str(n), "text": f"salt{n} " + "x" * (n * 10 * KIB)} for n in range(1, 5)]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Four documents of about 10, 20, 30 and 40 KiB, which are the rows 0 to 3."""
    out = tmp_path_factory.mktemp("answers") / "i"
    return Index.build(ROWS, out=out, model=HashingEmbedder(8))


def found(*rows: int) -> Retrieved:
    docs = np.array(rows, np.int64)
    scores = np.linspace(1, 0.5, len(rows))
    return Retrieved(f"query {rows}", "", None, Ranking(docs, docs, scores))


def test_parts_hold_as_many_queries_as_fit(index: Index) -> None:
    # About 30, 30, 70 and 10 KiB, of 32 * 75 KiB / 32 = 75 KiB allowed.
    block = [found(0, 1), found(2), found(2, 3), found(0)]
    parts = list(within_memory(index.state, block, 32 * 75 * KIB))
    assert parts == [block[:2], block[2:3], block[3:]]
    assert list(within_memory(index.state, block, 32 * 200 * KIB)) == [block]
    assert list(within_memory(index.state, block, None)) == [block]


def test_a_document_found_twice_for_a_query_counts_once(index: Index) -> None:
    (part,) = within_memory(index.state, [found(3, 3)], 32 * 45 * KIB)
    assert part[0].asked == "query (3, 3)"


def test_hits_of_one_query_that_do_not_fit_are_refused(index: Index) -> None:
    parts = within_memory(index.state, [found(0), found(2, 3)], 32 * 64 * KIB)
    with pytest.raises(
        ConfigError,
        match=r"found for 'query .2, 3.' take .* 1/32 of the limit of set_memory_limit.* with k or",
    ):
        list(parts)


def test_an_engine_with_a_memory_budget_answers_as_without(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder(8))
    queries = [f"salt{n}" for n in range(1, 5)]
    expected = engine.search_many(queries, 1)
    assert [[hit.doc_id for hit in hits] for hits in expected] == [["1"], ["2"], ["3"], ["4"]]
    with memory_limited(8 << 30):
        engine.require_memory()
        assert engine.search_many(queries, 1) == expected
    with memory_limited(1 << 20), pytest.raises(ConfigError, match="memory"):
        engine.require_memory()


def test_an_index_without_a_model_has_a_memory_budget_too(tmp_path: Path) -> None:
    given = Index.build(ROWS, out=tmp_path / "given", vectors=np.eye(4, dtype=np.float32))
    engine = SearchEngine(given)
    with memory_limited(8 << 30):
        engine.require_memory()
        assert [hit.doc_id for hit in engine.search("salt3")] == ["3"]


def test_scores_are_told_by_id_best_first(index: Index) -> None:
    rankings = [found(2, 0).ranking, found(3).ranking, found().ranking]
    first, second, third = scores_by_id(index.state, rankings)
    assert list(first.items()) == [("3", 1.0), ("1", 0.5)]
    assert (second, third) == ({"4": 1.0}, {})
