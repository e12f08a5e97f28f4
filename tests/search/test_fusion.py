"""The fusion of two stages, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sbert_search.errors import QueryError
from sbert_search.records import StageScore
from sbert_search.search.fusion import (
    Candidates,
    Ranking,
    blocks_of,
    dense_part,
    fuse,
    lexical_part,
    whole_blocks,
)
from sbert_search.search.options import Fusion


def candidates(
    cosines: dict[int, float],
    words: dict[int, float],
    *,
    dense: int | None = None,
    lexical: int | None = None,
    most: float = 10.0,
) -> Candidates:
    """Candidates with all scores known, of which each stage ranks only its best few."""
    docs = sorted(cosines)
    scores = np.array([cosines[doc] for doc in docs])
    bm25 = np.array([words.get(doc, 0.0) for doc in docs])

    def ranks(values: np.ndarray, most: int | None) -> np.ndarray:
        order = np.lexsort((np.array(docs), -values))
        found = np.zeros(len(docs), np.int64)
        found[order] = np.arange(1, len(docs) + 1)
        return np.where(found <= (len(docs) if most is None else most), found, 0)

    return Candidates(
        np.array(docs, np.int64),
        np.array(docs, np.int64) + 1,
        ranks(scores, dense),
        scores,
        dense_part(scores, 0.0),
        np.where(bm25 > 0, ranks(bm25, lexical), 0),
        bm25,
        lexical_part(bm25, most),
    )


FOUND = candidates({10: 0.9, 20: 0.5, 30: 0.4, 50: 0.1}, {30: 8.0, 10: 6.0, 50: 4.0}, dense=3)


def by_doc(ranking: Ranking) -> dict[int, float]:
    return dict(zip(ranking.docs.tolist(), ranking.scores.tolist(), strict=True))


def test_a_weighted_sum_of_the_cosine_and_the_share_of_the_words() -> None:
    fused = fuse(FOUND, Fusion(dense_weight=0.6))
    assert by_doc(fused) == pytest.approx(
        {10: 0.6 * 0.9 + 0.4 * 0.6, 30: 0.6 * 0.4 + 0.4 * 0.8, 20: 0.3, 50: 0.06 + 0.16}
    )
    assert fused.docs.tolist() == [10, 30, 20, 50]


def test_a_score_does_not_depend_on_the_other_documents() -> None:
    alone = candidates({10: 0.9, 50: 0.1}, {10: 6.0, 50: 4.0})
    every = by_doc(fuse(FOUND, Fusion()))
    assert by_doc(fuse(alone, Fusion())) == {doc: every[doc] for doc in (10, 50)}


def test_reciprocal_ranks_ignore_scores() -> None:
    fused = fuse(FOUND, Fusion(method="rrf", dense_weight=0.5, rrf_k=60))
    assert fused.docs.tolist() == [10, 30, 20, 50]
    expected = [0.5 / 61 + 0.5 / 62, 0.5 / 63 + 0.5 / 61, 0.5 / 62, 0.5 / 63]
    assert fused.scores.tolist() == pytest.approx(expected)


def test_each_document_keeps_its_score_in_every_stage() -> None:
    fused = fuse(FOUND, Fusion())
    first = fused.stages_of(0)
    assert first["dense"] == StageScore(1, 0.9)
    assert first["lexical"] == StageScore(2, 6.0)
    assert first["fused"] == StageScore(1, fused.scores[0])
    by_number = {doc: fused.stages_of(at) for at, doc in enumerate(fused.docs.tolist())}
    assert "lexical" not in by_number[20]  # no word of the query
    assert by_number[50]["dense"] == StageScore(None, 0.1)  # its cosine is known, its rank is not


def test_only_words_or_only_vectors_give_the_order_of_that_stage() -> None:
    cosines = {10: 0.9, 20: 0.5, 30: 0.4}
    assert fuse(candidates(cosines, {}), Fusion()).docs.tolist() == [10, 20, 30]
    flat = candidates(dict.fromkeys((10, 30, 50), 0.0), {30: 8.0, 10: 6.0, 50: 4.0})
    assert fuse(flat, Fusion()).docs.tolist() == [30, 10, 50]
    assert len(fuse(candidates({}, {}), Fusion())) == 0


@pytest.mark.parametrize("method", ["weighted", "rrf"])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_asking_for_more_does_not_change_what_comes_first(method: str, weight: float) -> None:
    rng = np.random.default_rng(0)
    settings = Fusion(method=method, dense_weight=weight, depth=5)  # type: ignore[arg-type]
    cosines = {doc: float(rng.random()) for doc in range(300)}
    words = {doc: float(rng.random()) for doc in range(0, 300, 3)}
    every = fuse(candidates(cosines, words), settings)
    for n in (5, 20, 80):
        some = candidates(cosines, words, dense=n, lexical=n)
        found = (some.dense_ranks > 0) | (some.lexical_ranks > 0)
        fused = fuse(Candidates(*(getattr(some, f)[found] for f in FIELDS)), settings)
        for name, (ranks, scores) in fused.first(n).stages.items():
            assert ranks.tolist() == every.first(n).stages[name][0].tolist()
            assert scores.tolist() == every.first(n).stages[name][1].tolist()
        assert fused.docs[:n].tolist() == every.docs[:n].tolist()


FIELDS = tuple(Candidates._fields)


@pytest.mark.parametrize("depth", [1, 5, 100])
def test_without_a_weight_for_vectors_no_match_is_behind_another_document(depth: int) -> None:
    rng = np.random.default_rng(1)
    cosines = {doc: float(rng.random()) for doc in range(200)}
    words = {doc: float(rng.random()) for doc in range(0, 200, 4)}
    fused = fuse(candidates(cosines, words), Fusion(dense_weight=0.0, depth=depth))
    assert set(fused.docs[:50].tolist()) == set(words)
    assert fused.docs[50:].tolist() == sorted(
        cosines.keys() - words.keys(), key=lambda doc: -cosines[doc]
    )


def test_equal_scores_are_ordered_by_the_better_rank_and_then_by_row() -> None:
    even = candidates({3: 0.5, 7: 0.5, 9: 0.5}, {9: 0.0})
    assert fuse(even, Fusion()).docs.tolist() == [3, 7, 9]


def test_blocks_grow_by_four() -> None:
    ranks = np.array([1, 10, 11, 40, 41, 160, 161])
    assert blocks_of(ranks, 10).tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert [whole_blocks(n, 10) for n in (1, 10, 11, 40, 41)] == [10, 10, 40, 40, 160]
    assert whole_blocks(5, 10**30) == np.iinfo(np.int64).max


def test_cosines_of_a_model_whose_texts_are_all_alike_are_spread() -> None:
    cosines = np.array([1.0, 0.8, 0.6])
    assert dense_part(cosines, 0.6) == pytest.approx([1.0, 0.5, 0.0])
    assert dense_part(cosines, 0.2).tolist() == cosines.tolist()  # a low mean: as they are


def test_the_share_of_words_has_a_limit_and_may_be_of_nothing() -> None:
    assert lexical_part(np.array([0.0, 1.0, 5.0]), 4.0).tolist() == [0.0, 0.25, 1.0]
    assert lexical_part(np.zeros(2), 0.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "sum"}, "Unknown method 'sum'; known: rrf, weighted"),
        ({"dense_weight": 1.2}, "dense_weight is 1.2; it must be from 0 to 1"),
        ({"dense_weight": "a"}, "dense_weight is 'a'; pass a number"),
        ({"rrf_k": math.nan}, "rrf_k is nan; pass an integer"),
        ({"depth": 1.5}, "depth is 1.5; pass an integer"),
        ({"rerank_weight": -1}, "rerank_weight is -1"),
        ({"depth": 0}, "depth is 0"),
        ({"rrf_k": 0}, "rrf_k is 0"),
        ({"score_range": (1, 0)}, r"score_range is \(1, 0\); pass the lowest and the highest"),
        ({"score_range": (0, math.inf)}, "score_range is"),
        ({"score_range": "01"}, "score_range is '01'"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        Fusion(**wrong)  # type: ignore[arg-type]
