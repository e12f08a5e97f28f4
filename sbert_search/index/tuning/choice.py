"""From trials to a choice: the fastest that reaches the recall within the budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sbert_search.index.trials import Trial
from sbert_search.index.tuning.predictions import BuildTime, predict_latency
from sbert_search.index.tuning.settings import Budget
from sbert_search.index.tuning.sweep import MeasuredFamily, reaches

NEAR = 1.1  # a candidate that is this much slower may win by being smaller


@dataclass(frozen=True, slots=True)
class Finalist:
    """A family that reached the recall on the sample, with what all rows are expected to cost.

    Attributes:
        measured: What it did on the sample.
        trial: Its fastest trial with the recall.
        latency_ms: Predicted median latency.
        build_s: Predicted seconds to build.
        size_bytes: Predicted bytes of its files.
        refused: Why the budget forbids it, or "".
    """

    measured: MeasuredFamily
    trial: Trial
    latency_ms: float
    build_s: float
    size_bytes: int
    refused: str


def outlook(measured: Iterable[MeasuredFamily], budget: Budget) -> list[Finalist]:
    """Predict what each family that has the recall would do over all rows, fastest first."""
    found = [_predicted(m, budget) for m in measured if _best(m, budget)]
    return sorted(found, key=lambda f: f.latency_ms)


def finalists(candidates: Sequence[Finalist]) -> list[Finalist]:
    """Take the fastest that the budget allows, and the fastest of another kind if there is one.

    What a sample tells of a graph, or of lists, may be wrong of all graphs or lists alike. What is
    slower than an exact scan is not taken.
    """
    allowed: list[Finalist] = []
    for candidate in candidates:
        if not candidate.refused:
            allowed.append(candidate)
            if candidate.trial.spec.is_flat:
                break
    others = [c for c in allowed if _kind(c) != _kind(allowed[0])]
    return [*allowed[:1], *(others or allowed[1:])[:1]]


def _kind(candidate: Finalist) -> tuple[bool, bool]:
    spec = candidate.trial.spec
    return spec.is_hnsw, spec.is_flat


def fastest(trials: Iterable[Trial], recall: float, latency_ms: float | None) -> Trial | None:
    """Choose the fastest trial with the recall; the smallest index among nearly as fast ones."""
    good = [t for t in trials if reaches(t, recall) and t.p50_ms <= (latency_ms or float("inf"))]
    if not good:
        return None
    limit = max(t.qps for t in good) / NEAR
    return min((t for t in good if t.qps >= limit), key=lambda t: (t.size_bytes, -t.qps))


def pareto(trials: Iterable[Trial]) -> list[Trial]:
    """Keep the trials that no other one beats in both recall and speed, by rising recall."""
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda t: (t.recall, t.qps), reverse=True):
        if not front or trial.qps > front[-1].qps:
            front.append(trial)
    return front[::-1]


def _best(measured: MeasuredFamily, budget: Budget) -> Trial | None:
    return fastest(measured.trials, budget.settings.recall, None)


def _predicted(measured: MeasuredFamily, budget: Budget) -> Finalist:
    trial = _best(measured, budget)
    assert trial is not None
    wanted = list(budget.segments)
    latency_ms = predict_latency(trial.p50_ms, trial.spec, trial.n_rows, wanted)
    if measured.full is None:
        return Finalist(measured, trial, latency_ms, 0.0, 0, _too_slow(latency_ms, budget))
    build_s = _build_seconds(measured.full, budget)
    spec = measured.full.spec
    why = (
        budget.no_memory_for(spec, budget.largest)
        or _too_slow(latency_ms, budget)
        or budget.no_time_for(build_s, 0.8)
    )
    return Finalist(measured, trial, latency_ms, build_s, budget.total_bytes(spec), why)


def _build_seconds(full: BuildTime, budget: Budget) -> float:
    """Train once, fill every segment."""
    return full.train_s + full.add_s * sum(budget.built_segments) / full.n_rows


def _too_slow(latency_ms: float, budget: Budget) -> str:
    allowed = budget.settings.latency_ms
    if allowed is None or latency_ms <= allowed:
        return ""
    return f"a query would take {latency_ms:.3g} ms of {allowed:.3g}"
