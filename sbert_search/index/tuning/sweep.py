"""Measuring kinds of index on a sample, and choosing the fastest that reaches the recall.

A family is a kind of index. A ladder is a list of its specs with ascending search parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Advance
from sbert_search.index.dense import faiss_build
from sbert_search.index.dense.exact import QUERY_BLOCK, TopK, offer_nearest
from sbert_search.index.dense.faiss_runtime import FaissIndex, import_faiss
from sbert_search.index.dense.segment_search import offer_approximate
from sbert_search.index.norms import largest_norm
from sbert_search.index.settings import IndexSpec, Trial
from sbert_search.index.storage.manifest import VectorSettings
from sbert_search.index.tuning.measuring import (
    BuildTime,
    Floats,
    GroundTruth,
    Search,
    assign_seconds,
    latencies_ms,
    predict,
    predict_latency,
    recall_of,
)
from sbert_search.index.tuning.settings import TOO_LATE, Budget, Family, between

TINY_BUILD_ROWS = 4096  # rows of a tiny build, whose time predicts that of a build on the sample
TINY_BUILDS = 2  # tiny builds of each family, of which the fastest counts
PLATEAU = 0.002  # a ladder ends when two steps gain less recall than this
HALVINGS = 3  # bisections between the last step below the recall and the first that reaches it
SAMPLE_SHARE = 0.15  # share of the remaining time that one build on the sample may take
FULL_SHARE = 0.8  # share of the remaining time that a build over all rows may take


@dataclass(frozen=True, slots=True)
class Sample:
    """The rows on which families are compared, with the attributes of a segment."""

    vectors: Floats  # (n_rows, dim)
    rows: NDArray[np.int64]  # numbers from 0, (n_rows,)
    max_norm: float

    @classmethod
    def of(cls, vectors: Floats) -> Sample:
        """Make a sample of vectors."""
        return cls(vectors, np.arange(len(vectors)), largest_norm(vectors))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.vectors)


@dataclass(frozen=True, slots=True)
class MeasuredFamily:
    """The measurements of a family on the sample, and its predicted build over all rows."""

    family: Family
    # with different search parameters; empty if the family was not built
    trials: tuple[Trial, ...] = ()
    full: BuildTime | None = None  # predicted for the largest segment; None for an exact scan
    skipped: str = ""  # why the family was not built, or ""
    seconds: float = 0.0  # that its measurements took


def sweep(
    families: Sequence[Family],
    sample: Sample,
    truth: GroundTruth,
    settings: VectorSettings,
    budget: Budget,
) -> Iterator[MeasuredFamily]:
    """Measure each family on the sample, and yield the result as soon as it is known.

    A family whose build would exceed the budget, or whose training needs more rows than the sample
    has, is not built; its result gives the reason. The time that the best family so far needs for
    its build over all rows is not spent on further families.
    """
    needs_faiss = any(family.pattern != "Flat" for family in families)
    assign_s = assign_seconds(sample.vectors) if needs_faiss else 0.0
    measured: list[MeasuredFamily] = []
    for family in families:
        start = time.monotonic()
        if why := time_is_kept(measured, budget):
            result = MeasuredFamily(family, skipped=why)
        else:
            result = _measured(family, sample, truth, settings, budget, assign_s)
        measured.append(replace(result, seconds=time.monotonic() - start))
        yield measured[-1]


def time_is_kept(measured: Sequence[MeasuredFamily], budget: Budget) -> str:
    """Return why no further family is measured, which may take as long as any before; "" if one is.

    Over all rows, the best family so far takes its predicted build and as many trials as here.
    """
    chosen = finalists(predict_costs(measured, budget))
    if not chosen or chosen[0].measured.full is None:
        return ""
    best, factory = chosen[0], chosen[0].measured.full.spec.factory
    left = budget.seconds_left - max(family.seconds for family in measured)
    if best.build_s + best.measured.seconds <= FULL_SHARE * left:
        return ""
    return f"{TOO_LATE}, which is kept for building {factory}"


def search_of(sample: Sample, index: FaissIndex | None, settings: VectorSettings) -> Search:
    """Return a function that searches a sample: by a FAISS index, or by a scan if it is None."""

    def search(queries: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
        tops = []
        for start in range(0, len(queries), QUERY_BLOCK):
            block = queries[start : start + QUERY_BLOCK]
            tops.append(top := TopK.empty(len(block), k))
            if index is None:
                offer_nearest(top, block, sample, None, None, settings)
            else:
                offer_approximate(top, block, sample, index, None, settings)
        return np.concatenate([t.scores for t in tops]), np.concatenate([t.rows for t in tops])

    return search


def climb(
    search_by: Callable[[IndexSpec], Search],
    ladders: Iterator[list[IndexSpec]],
    truth: GroundTruth,
    recall: float,
    unmeasured_trial: Trial,
    advance: Advance = lambda n: None,
) -> list[Trial]:
    """Raise the search parameters until the recall is reached, then find the lowest that reach it.

    nprobe or ef_search is raised anew for each ladder, that is, each value of ``refine``. The
    trials end when a ladder gives no faster search than an earlier one.
    """
    tried: list[Trial] = []
    best = 0.0
    for ladder in ladders:
        steps = _climb_one(search_by, ladder, truth, recall, unmeasured_trial)
        advance(len(steps))
        tried += steps
        fastest = max((t.qps for t in steps if reaches(t, recall)), default=0.0)
        if best and fastest <= best:
            break
        best = max(best, fastest)
    return tried


def reaches(trial: Trial, recall: float) -> bool:
    """Whether the recall minus its standard error is at least a target, or the recall is 1."""
    return trial.recall - trial.recall_error >= recall or trial.recall == 1.0


def _measured(
    family: Family,
    sample: Sample,
    truth: GroundTruth,
    settings: VectorSettings,
    budget: Budget,
    assign_s: float,
) -> MeasuredFamily:
    spec, target = family.spec(sample.n_rows), budget.settings.recall
    if spec.is_flat:
        scan = search_of(sample, None, settings)
        flat = unmeasured(spec, sample.n_rows)
        trials = climb(lambda _: scan, family.ladders(spec), truth, target, flat)
        return MeasuredFamily(family, tuple(trials))
    full_spec = family.spec(budget.largest)
    why = budget.memory_refusal(full_spec, budget.largest)
    why = why or budget.memory_refusal(spec, sample.n_rows)
    if spec.min_training_rows > sample.n_rows:
        why = (
            f"its training takes {spec.min_training_rows:,} rows, and the sample has "
            f"{sample.n_rows:,}"
        )
    if why:
        return MeasuredFamily(family, skipped=why)
    small = Sample.of(sample.vectors[:TINY_BUILD_ROWS])
    builds = (_build(family.spec(small.n_rows), small, settings)[1] for _ in range(TINY_BUILDS))
    # The faster of two, since a delay in a tiny build would be multiplied by the prediction.
    tiny = min(builds, key=lambda build: build.seconds)
    expected = predict(tiny, spec, sample.n_rows, assign_s)
    if why := budget.time_refusal(expected.seconds, SAMPLE_SHARE):
        return MeasuredFamily(family, skipped=why)
    index, time_taken = _build(spec, sample, settings)
    unmeasured_trial = replace(
        unmeasured(spec, sample.n_rows),
        size_bytes=_size_of(index),
        predicted_bytes=spec.predicted_bytes(sample.n_rows, settings.dim),
        build_s=time_taken.seconds,
        predicted_build_s=expected.seconds,
    )
    trials = climb(
        lambda s: search_of(sample, index, replace(settings, spec=s)),
        family.ladders(spec),
        truth,
        target,
        unmeasured_trial,
    )
    full = predict(time_taken, full_spec, budget.largest, assign_s)
    return MeasuredFamily(family, tuple(trials), full)


def _climb_one(
    search_by: Callable[[IndexSpec], Search],
    ladder: Sequence[IndexSpec],
    truth: GroundTruth,
    recall: float,
    unmeasured_trial: Trial,
) -> list[Trial]:
    tried: list[Trial] = []
    for spec in ladder:
        tried.append(measure(search_by(spec), spec, truth, unmeasured_trial))
        if reaches(tried[-1], recall):
            break
        if len(tried) > 2 and tried[-1].recall - tried[-3].recall < PLATEAU:
            return tried
    if len(tried) < 2 or not reaches(tried[-1], recall):
        return tried
    low, high = tried[-2].spec, tried[-1].spec
    for _ in range(HALVINGS):
        middle = between(low, high)
        if middle is None:
            break
        tried.append(measure(search_by(middle), middle, truth, unmeasured_trial))
        low, high = (low, middle) if reaches(tried[-1], recall) else (middle, high)
    return tried


def measure(search: Search, spec: IndexSpec, truth: GroundTruth, unmeasured_trial: Trial) -> Trial:
    """Measure recall and speed of a search; ``unmeasured_trial`` has the rest of the result."""
    recall, error, qps = recall_of(search, truth)
    p50_ms, p99_ms = latencies_ms(search, truth)
    return replace(
        unmeasured_trial,
        spec=spec,
        recall=recall,
        recall_error=error,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        qps=qps,
    )


def unmeasured(spec: IndexSpec, n_rows: int) -> Trial:
    """Return a trial whose measurements are all 0, to be filled in by `measure`."""
    return Trial(
        spec=spec, n_rows=n_rows, recall=0.0, recall_error=0.0, p50_ms=0.0, p99_ms=0.0, qps=0.0
    )


def _build(
    spec: IndexSpec, sample: Sample, settings: VectorSettings
) -> tuple[FaissIndex, BuildTime]:
    start = time.perf_counter()
    index = faiss_build.empty_index(spec, settings.dim, settings.metric)
    if not index.is_trained:
        faiss_build.train_on(index, sample.vectors)
    trained = time.perf_counter()
    index = faiss_build.fill(index, sample.vectors)
    done = time.perf_counter()
    return index, BuildTime(spec, sample.n_rows, trained - start, done - trained)


def _size_of(index: FaissIndex) -> int:
    """Return the bytes that a FAISS index would take in a file."""
    faiss = import_faiss()
    n_bytes = 0

    def count(data: bytes) -> int:
        nonlocal n_bytes
        n_bytes += len(data)
        return len(data)

    faiss.write_index(index, faiss.PyCallbackIOWriter(count))
    return n_bytes


NEAR = 1.1  # an index up to this many times slower than the fastest is chosen if it is smaller


@dataclass(frozen=True, slots=True)
class Candidate:
    """A family that reached the recall on the sample, and its predicted cost over all rows."""

    measured: MeasuredFamily
    trial: Trial  # the best on the sample, as `fastest` chooses it
    latency_ms: float  # predicted median for a single query
    build_s: float  # predicted; 0 for an exact scan
    size_bytes: int  # predicted, of the FAISS files; 0 for an exact scan
    refused: str  # why the family exceeds the budget, or ""


def predict_costs(measured: Iterable[MeasuredFamily], budget: Budget) -> list[Candidate]:
    """Predict the costs over all rows of the families with the recall, by latency."""
    recall = budget.settings.recall
    best = [(family, fastest(family.trials, recall, None)) for family in measured]
    predicted = [_predicted(family, trial, budget) for family, trial in best if trial]
    return sorted(predicted, key=lambda f: f.latency_ms)


def finalists(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Choose at most two of the candidates, fastest first, to build over all rows.

    The first is the fastest within the budget. The second is the fastest of another structure
    (graph or inverted lists) or, if there is none, the second fastest. An exact scan, and what is
    slower, is not chosen beside a faster candidate: it needs no trial. A prediction may be wrong in
    the same way for all of one structure, so two of it could both fail.
    """
    allowed = [candidate for candidate in candidates if not candidate.refused]
    flat = [candidate.trial.spec.is_flat for candidate in allowed]
    if True in flat:
        allowed = allowed[: max(flat.index(True), 1)]
    others = [c for c in allowed[1:] if c.trial.spec.is_hnsw != allowed[0].trial.spec.is_hnsw]
    return [*allowed[:1], *(others or allowed[1:])[:1]]


def fastest(trials: Iterable[Trial], recall: float, latency_ms: float | None) -> Trial | None:
    """Choose the trial with the most queries per second within the targets; None if there is none.

    A trial nearly as fast is chosen if its index is smaller. ``latency_ms`` limits the median
    latency of a single query; None: no limit.
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


def _predicted(measured: MeasuredFamily, trial: Trial, budget: Budget) -> Candidate:
    latency_ms = predict_latency(trial.p50_ms, trial.spec, trial.n_rows, list(budget.segments))
    allowed, full, slow = budget.settings.latency_ms, measured.full, ""
    if allowed is not None and latency_ms > allowed:
        slow = f"a query would take {latency_ms:.3g} ms, and {allowed:.3g} ms are allowed"
    if full is None:
        return Candidate(measured, trial, latency_ms, 0.0, 0, slow)
    # Each shard is trained once, and every segment is filled.
    build_s = full.train_s * budget.n_shards + full.add_s * sum(budget.ann_segments) / full.n_rows
    too_large = budget.memory_refusal(full.spec, budget.largest)
    why = too_large or slow or budget.time_refusal(build_s, FULL_SHARE)
    return Candidate(measured, trial, latency_ms, build_s, budget.total_bytes(full.spec), why)
