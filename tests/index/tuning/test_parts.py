"""Recall, predictions and the choice, on values worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.errors import ConfigError
from sbert_search.index.settings import IndexSpec, Trial
from sbert_search.index.tuning.measuring import (
    BuildTime,
    find_ground_truth,
    predict,
    predict_latency,
    recall_of,
    without_own,
)
from sbert_search.index.tuning.settings import (
    Budget,
    Family,
    TuneSettings,
    between,
    families,
    lists_for,
)
from sbert_search.index.tuning.sweep import (
    Candidate,
    MeasuredFamily,
    fastest,
    finalists,
    pareto,
    time_is_kept,
)


def trial(recall: float, qps: float, size: int = 0, p50_ms: float = 1.0) -> Trial:
    return Trial(
        spec=IndexSpec(),
        n_rows=10,
        recall=recall,
        recall_error=0.0,
        p50_ms=p50_ms,
        p99_ms=p50_ms,
        qps=qps,
        size_bytes=size,
    )


def test_a_query_is_no_answer_to_itself_and_equal_scores_count() -> None:
    scores = np.array([[1.0, 0.5, 0.5, 0.1], [0.9, 0.8, 0.7, 0.6]], np.float32)
    rows = np.array([[3, 4, 5, 6], [1, 2, 3, 4]])
    own = np.array([3, -1])
    kept_scores, kept_rows = without_own(scores, rows, own)
    assert kept_rows.tolist() == [[4, 5, 6], [1, 2, 3]]
    assert kept_scores[0].tolist() == pytest.approx([0.5, 0.5, 0.1])

    def exact(
        queries: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return scores[:, :k], rows[:, :k]

    def approximate(
        queries: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return np.array([[0.5, 0.5], [0.9, 0.1]], np.float32), np.array([[5, 9], [1, 8]])

    probes = find_ground_truth(np.zeros((2, 4), np.float32), own, 1, exact)
    assert probes.kth.tolist() == pytest.approx([0.5, 0.9])
    assert recall_of(approximate, probes)[0] == 1.0
    probes = dataclasses.replace(probes, k=2, kth=np.array([0.5, 0.8], np.float32))
    assert recall_of(approximate, probes)[0] == 0.5 * (1 / 2) + 0.5 * (1 / 2)


def test_build_times_scale_by_what_each_kind_of_index_does() -> None:
    graph = BuildTime(IndexSpec(factory="HNSW16"), 1_000, 0.0, 2.0)
    assert predict(graph, graph.spec, 1_000_000, 1.0).seconds == pytest.approx(4_000)
    lists = BuildTime(IndexSpec(factory="IVF16,SQ8"), 1_024, 10 * 1_024 * 16e-6 + 1.0, 1.024)
    wide = predict(lists, IndexSpec(factory="IVF64,SQ8"), 10_000, 1e-6)
    assert wide.train_s == pytest.approx(10 * 64 * 64 * 64 * 1e-6 + 1.0)
    assert wide.add_s == pytest.approx(10_000 * (0.001 - 16e-6 + 64e-6))


def test_latencies_add_up_over_segments() -> None:
    assert predict_latency(1.0, IndexSpec(), 100, [100, 300]) == pytest.approx(4.0)
    lists = IndexSpec(factory="IVF16,SQ8")
    assert predict_latency(1.0, lists, 100, [400, 900]) == pytest.approx(5.0)
    assert predict_latency(1.0, IndexSpec(factory="HNSW16"), 100, [10_000]) == pytest.approx(2.0)


def test_the_fastest_with_the_recall_wins_unless_a_smaller_one_is_as_fast() -> None:
    trials = [trial(0.99, 100, 4), trial(0.96, 200, 9), trial(0.96, 190, 3), trial(0.9, 999, 1)]
    assert fastest(trials, 0.95, None) == trials[2]
    assert fastest(trials[:2], 0.95, None) == trials[1]
    assert fastest(trials, 0.995, None) is None
    assert fastest([trial(1.0, 5, p50_ms=9.0)], 0.5, 8.0) is None
    assert pareto([*trials, trial(0.95, 50)]) == [trials[3], trials[1], trials[0]]


@pytest.mark.parametrize(
    ("fastest_first", "taken"),
    [
        ("HNSW16 HNSW32 IVF16,SQ8 IVF16,Flat Flat", "HNSW16 IVF16,SQ8"),
        ("IVF16,SQ8 IVF16,Flat Flat HNSW16", "IVF16,SQ8 IVF16,Flat"),
        ("HNSW16! HNSW32 HNSW8 IVF16,SQ8!", "HNSW32 HNSW8"),
        ("HNSW16 HNSW32 Flat!", "HNSW16 HNSW32"),
        ("Flat HNSW16", "Flat"),
        ("HNSW16!", ""),
    ],
)
def test_the_second_finalist_is_of_another_kind(fastest_first: str, taken: str) -> None:
    candidates = []
    for factory in fastest_first.split():
        spec = IndexSpec(factory=factory.rstrip("!"))
        family = MeasuredFamily(Family(spec.factory))
        made = dataclasses.replace(trial(1.0, 1.0), spec=spec)
        candidates.append(Candidate(family, made, 1.0, 1.0, 1, "no" * factory.endswith("!")))
    assert [each.trial.spec.factory for each in finalists(candidates)] == taken.split()


@pytest.mark.parametrize(
    ("minutes", "build_s", "slowest_s", "kept"),
    [
        (10, 100, 10, False),  # 110 s are needed, and 80 % of 590 are left
        (10, 400, 10, False),  # 410 of 472
        (10, 400, 90, True),  # 400 and as many trials as in 90 s, of 80 % of 510
        (10, 470, 10, True),
        (10, 900, 10, False),  # refused: nothing is worth keeping time for
    ],
)
def test_the_time_to_build_the_best_is_kept(
    minutes: float, build_s: float, slowest_s: float, kept: bool
) -> None:
    budget = Budget(segments=(60_000,), dim=8, settings=TuneSettings(max_minutes=minutes))
    scan = MeasuredFamily(Family("Flat"), (trial(1.0, 10, p50_ms=9.0),), seconds=1)
    assert time_is_kept([scan], budget) == ""
    spec = IndexSpec(factory="IVF16,Flat")
    full = BuildTime(spec, 60_000, 0.0, build_s)
    best = dataclasses.replace(trial(0.99, 1_000), spec=spec)
    lists = MeasuredFamily(Family(spec.factory), (best,), full, seconds=slowest_s)
    why = time_is_kept([scan, lists], budget)
    assert why == ("too little time, which is kept for building IVF16,Flat" if kept else "")


def test_families_suit_the_rows_and_the_length() -> None:
    assert [f.pattern for f in families(49_999, 384)] == ["Flat"]
    patterns = [f.pattern for f in families(1_000_000, 384)]
    assert "IVF{lists},PQ192x4fs" in patterns
    assert "IVF{lists},RaBitQfs" in patterns
    assert Family("IVF{lists},RaBitQfs").name == "IVF...,RaBitQfs"
    assert (lists_for(1_000_000), lists_for(100_000), lists_for(4_096)) == (2048, 512, 64)
    for family in families(1_000_000, 383):
        assert family.spec(100_000).factory
    family = Family("IVF{lists},SQ8", (2,))
    ladder = next(family.ladders(family.spec(4_096)))
    assert [spec.nprobe for spec in ladder] == [1, 2, 4, 8, 16, 32, 64]
    middle = between(ladder[3], ladder[4])
    assert middle is not None
    assert middle.nprobe == 12
    assert between(ladder[0], ladder[1]) is None
    # The rows may have become more since the files of this spec were built.
    built = IndexSpec(factory="IVF32,SQ8")
    assert {spec.factory for spec in next(family.ladders(built))} == {built.factory}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"k": 0}, "k is 0; it must be from 1 to 1,000"),
        ({"n_queries": 1}, "n_queries is 1; it must be at least 2"),
        ({"sample_rows": -3}, "sample_rows is -3; it must be at least 2"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"k": 10.0}, r"k is 10\.0; it must be of type int"),
        ({"max_minutes": math.nan}, "max_minutes must be a finite number within 64 bits"),
        ({"latency_ms": 0.0}, r"latency_ms is 0\.0; it must be finite, and above 0"),
    ],
)
def test_settings_out_of_range_are_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}\\.$"):
        TuneSettings(**setting)
