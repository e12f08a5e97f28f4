"""Two rankings made one, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sbert_search.errors import QueryError
from sbert_search.records import StageScore
from sbert_search.search.ranking import Ranking
from sbert_search.search.stages.fusion import Fusion, fuse, min_max_scaled, mix_scores


def ranking(docs: list[int], scores: list[float], shift: int = 0) -> Ranking:
    at = np.array(docs, np.int64)
    return Ranking(at, at + shift, np.array(scores, np.float64))


DENSE = ranking([10, 20, 30], [0.9, 0.5, 0.4], shift=1)
LEXICAL = ranking([30, 10, 50], [8.0, 6.0, 4.0])


def test_a_weighted_sum_scales_each_query_and_gives_nothing_for_what_was_not_found() -> None:
    fused = fuse(DENSE, LEXICAL, Fusion(dense_weight=0.6))
    assert fused.docs.tolist() == [10, 30, 20, 50]
    assert fused.scores.tolist() == pytest.approx([0.6 + 0.4 * 0.5, 0.4, 0.6 * 0.2, 0.0])


def test_reciprocal_ranks_ignore_scores() -> None:
    fused = fuse(DENSE, LEXICAL, Fusion(method="rrf", rrf_k=60))
    assert fused.docs.tolist() == [10, 30, 20, 50]
    expected = [0.5 / 61 + 0.5 / 62, 0.5 / 63 + 0.5 / 61, 0.5 / 62, 0.5 / 63]
    assert fused.scores.tolist() == pytest.approx(expected)


def test_each_document_keeps_what_every_stage_said() -> None:
    fused = fuse(DENSE, LEXICAL, Fusion())
    first, second = fused.stages_of(0), fused.stages_of(1)
    assert first["dense"] == StageScore(1, 0.9)
    assert first["lexical"] == StageScore(2, 6.0)
    assert first["fused"] == StageScore(1, fused.scores[0])
    assert second["dense"].rank == 3
    assert fused.stages_of(3).keys() == {"lexical", "fused"}


def test_the_passage_is_that_of_the_dense_stage_where_there_is_one() -> None:
    fused = fuse(DENSE, LEXICAL, Fusion())
    assert dict(zip(fused.docs.tolist(), fused.rows.tolist(), strict=True)) == {
        10: 11,
        30: 31,
        20: 21,
        50: 50,
    }


@pytest.mark.parametrize("method", ["weighted", "rrf"])
def test_nothing_on_one_side_leaves_the_order_of_the_other(method: str) -> None:
    nothing = ranking([], [])
    settings = Fusion(method=method)  # type: ignore[arg-type]
    assert fuse(DENSE, nothing, settings).docs.tolist() == [10, 20, 30]
    assert fuse(nothing, LEXICAL, settings).docs.tolist() == [30, 10, 50]
    assert len(fuse(nothing, nothing, settings)) == 0


@pytest.mark.parametrize("method", ["weighted", "rrf"])
def test_asking_for_more_does_not_change_what_comes_first(method: str) -> None:
    rng = np.random.default_rng(0)
    settings = Fusion(method=method, depth=20)  # type: ignore[arg-type]
    sides = []
    for _ in range(2):
        docs = rng.permutation(300)[:200]
        sides.append(ranking(docs.tolist(), np.sort(rng.random(200))[::-1].tolist()))
    few = fuse(sides[0].first(20), sides[1].first(20), settings)
    many = fuse(sides[0], sides[1], settings)
    positive = int((few.scores > 0).sum())
    assert positive > 25
    assert many.docs[:positive].tolist() == few.docs[:positive].tolist()
    assert many.scores[:positive].tolist() == few.scores[:positive].tolist()
    assert (many.scores[len(few) :] == 0).all()


def test_equal_scores_come_in_the_order_of_rows_whatever_found_them() -> None:
    fused = fuse(ranking([7], [1.0]), ranking([3], [9.0]), Fusion())
    assert fused.docs.tolist() == [3, 7]


def test_a_weight_of_one_or_nothing_is_one_stage_alone() -> None:
    assert fuse(DENSE, LEXICAL, Fusion(dense_weight=1.0)).docs[:2].tolist() == [10, 20]
    assert fuse(DENSE, LEXICAL, Fusion(dense_weight=0.0)).docs[:2].tolist() == [30, 10]


def test_scaling_brings_scores_to_0_and_1() -> None:
    assert min_max_scaled(np.array([3.0, 2.0, 1.0])).tolist() == [1, 0.5, 0]
    assert min_max_scaled(np.array([2.0, 2.0])).tolist() == [1, 1]
    assert min_max_scaled(np.empty(0)).tolist() == []


def test_a_rerankers_score_is_mixed_on_one_scale() -> None:
    before, reranked = np.array([0.3, 0.2, 0.1]), np.array([-5.0, 5.0, 0.0])
    assert mix_scores(before, reranked, 1.0).tolist() == reranked.tolist()
    assert mix_scores(before, reranked, 0.0).tolist() == pytest.approx([1, 0.5, 0])
    assert mix_scores(before, reranked, 0.5).tolist() == pytest.approx([0.5, 0.75, 0.25])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "sum"}, "fusion is 'sum'; it must be weighted or rrf"),
        ({"dense_weight": 1.2}, "dense_weight is 1.2; it must be a number from 0 to 1"),
        ({"dense_weight": "a"}, "dense_weight is 'a'; it must be a number"),
        ({"rrf_k": math.nan}, "rrf_k is nan; it must be an integer"),
        ({"depth": 1.5}, "depth is 1.5; it must be an integer of at least 1"),
        ({"rerank_weight": -1}, "rerank_weight is -1"),
        ({"depth": 0}, "depth is 0"),
        ({"rrf_k": 0}, "rrf_k is 0"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        Fusion(**wrong)  # type: ignore[arg-type]
