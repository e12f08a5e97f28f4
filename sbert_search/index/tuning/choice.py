"""Choosing, from measured trials, the fastest index that reaches the recall within the budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sbert_search.index.trials import Trial
from sbert_search.index.tuning.predictions import BuildTime, predict_latency
from sbert_search.index.tuning.settings import Budget
from sbert_search.index.tuning.sweep import MeasuredFamily, reaches

NEAR = 1.1  # an index up to this many times slower than the fastest is chosen if it is smaller


@dataclass(frozen=True, slots=True)
class Candidate:
    """A family (kind of index) that reached the recall on the sample, and its predicted cost.

    Attributes:
        measured: Measurements of the family on the sample.
        trial: The best of these measurements, as `fastest` chooses it.
        latency_ms: Predicted median latency of a single query over all rows.
        build_s: Predicted seconds to build over all rows; 0 for an exact scan.
        size_bytes: Predicted bytes of the FAISS files; 0 for an exact scan.
        refused: Why the family exceeds the budget, or "".
    """

    measured: MeasuredFamily
    trial: Trial
    latency_ms: float
    build_s: float
    size_bytes: int
    refused: str


def predict_costs(measured: Iterable[MeasuredFamily], budget: Budget) -> list[Candidate]:
    """Predict the cost over all rows of each family that reached the recall on the sample.

    Returns:
        The families with the lowest predicted latency first.
    """
    predicted = [_predicted(m, budget) for m in measured if _best(m, budget)]
    return sorted(predicted, key=lambda f: f.latency_ms)


def finalists(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Choose at most two candidates to build over all rows, if possible of different structures.

    The first is the fastest candidate within the budget. The second is the fastest candidate of
    another structure within the budget; if there is none, the second fastest of the same structure.
    A structure is an HNSW graph, inverted lists, or none (an exact scan). Candidates slower than an
    exact scan are not chosen.

    A prediction from a sample may be wrong in the same way for all graphs, or for all inverted
    lists. Two finalists of one structure could therefore both fail (docs/decisions.md: The two
    finalists of `index tune` are of two kinds).

    Args:
        candidates: The families that reached the recall on the sample, fastest first.
    """
    allowed: list[Candidate] = []
    for candidate in candidates:
        if not candidate.refused:
            allowed.append(candidate)
            if candidate.trial.spec.is_flat:
                break
    others = [c for c in allowed if _structure(c) != _structure(allowed[0])]
    return [*allowed[:1], *(others or allowed[1:])[:1]]


def _structure(candidate: Candidate) -> tuple[bool, bool]:
    spec = candidate.trial.spec
    return spec.is_hnsw, spec.is_flat


def fastest(trials: Iterable[Trial], recall: float, latency_ms: float | None) -> Trial | None:
    """Choose the fastest trial within the targets, or one nearly as fast whose index is smaller.

    The fastest trial is the one with the most queries per second in batches.

    Args:
        trials: Measured trials.
        recall: Target recall.
        latency_ms: Limit of the median latency of a single query. None: no limit.

    Returns:
        The trial; None if no trial is within the targets.
    """
    good = [t for t in trials if reaches(t, recall) and t.p50_ms <= (latency_ms or float("inf"))]
    if not good:
        return None
    limit = max(t.qps for t in good) / NEAR
    return min((t for t in good if t.qps >= limit), key=lambda t: (t.size_bytes, -t.qps))


def pareto(trials: Iterable[Trial]) -> list[Trial]:
    """Keep the trials that no other trial beats in both recall and speed, by ascending recall."""
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda t: (t.recall, t.qps), reverse=True):
        if not front or trial.qps > front[-1].qps:
            front.append(trial)
    return front[::-1]


def _best(measured: MeasuredFamily, budget: Budget) -> Trial | None:
    return fastest(measured.trials, budget.settings.recall, None)


def _predicted(measured: MeasuredFamily, budget: Budget) -> Candidate:
    trial = _best(measured, budget)
    assert trial is not None
    latency_ms = predict_latency(trial.p50_ms, trial.spec, trial.n_rows, list(budget.segments))
    if measured.full is None:
        return Candidate(measured, trial, latency_ms, 0.0, 0, _too_slow(latency_ms, budget))
    build_s = _build_seconds(measured.full, budget)
    spec = measured.full.spec
    why = (
        budget.memory_refusal(spec, budget.largest)
        or _too_slow(latency_ms, budget)
        or budget.time_refusal(build_s, 0.8)
    )
    return Candidate(measured, trial, latency_ms, build_s, budget.total_bytes(spec), why)


def _build_seconds(full: BuildTime, budget: Budget) -> float:
    """Predict the seconds to train once in each shard and to fill every segment."""
    return full.train_s * budget.n_shards + full.add_s * sum(budget.ann_segments) / full.n_rows


def _too_slow(latency_ms: float, budget: Budget) -> str:
    allowed = budget.settings.latency_ms
    if allowed is None or latency_ms <= allowed:
        return ""
    return f"a query would take {latency_ms:.3g} ms, and {allowed:.3g} ms are allowed"
