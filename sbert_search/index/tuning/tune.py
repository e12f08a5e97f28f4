"""`index tune`: candidates on a sample, finalists on all rows, the best one committed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import IndexStoreError
from sbert_search.index import compact, upkeep
from sbert_search.index.evidence import Trial, Tuning
from sbert_search.index.manifest import Manifest
from sbert_search.index.scan import normalised
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.spec import IndexSpec
from sbert_search.index.store import IndexStore
from sbert_search.index.transaction import Transaction, remove
from sbert_search.index.tuning.candidates import families
from sbert_search.index.tuning.choice import Finalist, fastest, finalists, outlook, pareto
from sbert_search.index.tuning.probes import (
    Floats,
    Probes,
    Search,
    make_probes,
    recall_of,
    speed_of,
)
from sbert_search.index.tuning.settings import Budget, TuneSettings
from sbert_search.index.tuning.sweep import Measured, Sample, climb, searching, sweep
from sbert_search.runtime.progress import note, progress
from sbert_search.runtime.provenance import library_versions, machine

FEWEST_QUERIES = 50  # of either kind, however little time there is for exact neighbours
TRUTH_SHARE = 0.2  # of the time left that exact neighbours over all rows may take


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneReport:
    """What a tuning found.

    Attributes:
        measured: Every family on the sample, with the reason where one was not built.
        outlook: What those with the recall were expected to do over all rows.
        built: Finalists over all rows, as searched for the queries to choose by.
        tuning: What was chosen and how it did on other queries; None after a dry run.
        seconds: All of it.
    """

    measured: tuple[Measured, ...]
    outlook: tuple[Finalist, ...]
    built: tuple[Trial, ...]
    tuning: Tuning | None
    seconds: float

    @property
    def trials(self) -> list[Trial]:
        """Everything measured on the sample."""
        return [trial for family in self.measured for trial in family.trials]


@dataclass(frozen=True, slots=True)
class Asked:
    """Queries in two parts: to choose by, and to verify on.

    Attributes:
        choosing, verifying: float32 (n_queries, dim) and the rows they were taken from, or -1.
        origin: Where they came from, in words.
    """

    choosing: tuple[Floats, NDArray[np.int64]]
    verifying: tuple[Floats, NDArray[np.int64]]
    origin: str


def tune(
    store: IndexStore,
    settings: TuneSettings,
    queries: Floats | None = None,
    *,
    origin: str = "documents",
    dry_run: bool = False,
) -> TuneReport:
    """Measure what suits an index, and search it so from now on.

    Until the last commit the index stays as it is, so an interrupt loses the measurements only.

    Args:
        store: The index.
        settings: What is asked.
        queries: float32 (n_queries, dim) such as will be asked; None: the documents themselves,
            which are no answers to themselves.
        origin: Where the queries came from, in words.
        dry_run: Measure on the sample, predict, and change nothing.

    Raises:
        IndexStoreError: There is nothing to search, or nothing keeps within the budget.
        IndexLocked: Another process writes.
    """
    budget = _budget(store.snapshot, settings)
    rng = np.random.default_rng(settings.seed)
    asked, sample = _draw(store.snapshot, settings, queries, origin, rng)
    measured = _sweep(sample, asked, store.snapshot, budget)
    candidates = outlook(measured, budget)
    chosen = finalists(candidates)
    if not chosen:
        raise IndexStoreError(_nothing_fits(candidates, settings))
    built: list[Trial] = []
    tuning = None
    if not dry_run:
        with store.writer() as writer:
            if writer.snapshot.manifest.segments != store.snapshot.manifest.segments:
                raise IndexStoreError(f"{store.path} changed meanwhile; tune it again.")
            final = Finals(writer.snapshot, asked, budget, pareto(_trials(measured)))
            writer.rewrite(partial(final.decide, chosen))
            built, tuning = final.built, final.tuning
    seconds = time.monotonic() - budget.started
    return TuneReport(
        measured=tuple(measured),
        outlook=tuple(candidates),
        built=tuple(built),
        tuning=tuning,
        seconds=seconds,
    )


class Finals:
    """Finalists built over all rows, searched with their best parameters, verified.

    Attributes:
        built: The best trial of each.
        tuning: What was chosen, once `decide` has.
    """

    def __init__(
        self, snapshot: Snapshot, asked: Asked, budget: Budget, front: Sequence[Trial]
    ) -> None:
        self._snapshot, self._asked, self._budget = snapshot, asked, budget
        self._front = tuple(front)
        self.built: list[Trial] = []
        self.tuning: Tuning | None = None

    def decide(self, chosen: Sequence[Finalist], work: Transaction) -> Manifest:
        """Build the finalists and return the manifest with the best one; the others' files go."""
        settings = self._budget.settings
        choosing, verifying = self._probes(chosen)
        exact = _without_ann(self._snapshot.manifest)
        options: dict[IndexSpec, Manifest] = {}
        for finalist in chosen:
            self._build(finalist, exact, choosing, work, options)
        best = fastest(self.built, settings.recall, settings.latency_ms)
        if best is None:
            note("No finalist keeps its promise over all rows; searching exactly.")
            best = self._scanned(exact, choosing)
            options[best.spec] = exact
        new = options[best.spec]
        verified = self._verified(new, best, verifying)
        self.tuning = Tuning(
            recall=settings.recall,
            k=settings.k,
            queries=self._asked.origin,
            n_choosing=len(choosing.queries),
            n_verifying=len(verifying.queries),
            verified=verified,
            sampled=self._front,
            seconds=time.monotonic() - self._budget.started,
            machine=machine(),
            libraries=library_versions(),
        )
        losers = {file.name for option in options.values() for file in option.files}
        losers -= {file.name for file in (*new.files, *work.old.files)}
        remove(work.path, [work.path / name for name in losers])
        return replace(new, tuning=self.tuning)

    def _build(
        self,
        finalist: Finalist,
        exact: Manifest,
        choosing: Probes,
        work: Transaction,
        options: dict[IndexSpec, Manifest],
    ) -> None:
        full = finalist.measured.full
        if full is None:
            trial = self._scanned(exact, choosing)
            options[trial.spec] = exact
            self.built.append(trial)
            return
        if options and (why := self._budget.no_time_for(finalist.build_s)):
            note(f"{full.spec.factory} is not built: {why}.")
            return
        start = time.monotonic()
        new = replace(exact, settings=replace(exact.settings, spec=full.spec))
        new = compact.with_ann(
            work, self._snapshot, new, memory_bytes=self._budget.settings.memory_bytes
        )
        made = replace(
            finalist.trial,
            n_rows=new.n_rows,
            size_bytes=sum(s.ann.size_bytes for s in new.segments if s.ann),
            predicted_bytes=finalist.size_bytes,
            build_s=time.monotonic() - start,
            predicted_build_s=finalist.build_s,
        )
        ladders = finalist.measured.family.ladders(self._budget.largest)
        snapshot = Snapshot(work.path, new, self._snapshot)
        settings = self._budget.settings
        trials = climb(partial(_searching, snapshot), ladders, choosing, settings.recall, made)
        best = fastest(trials, settings.recall, settings.latency_ms)
        best = best or max(trials, key=lambda t: t.recall)
        options[best.spec] = replace(new, settings=replace(new.settings, spec=best.spec))
        self.built.append(best)

    def _scanned(self, exact: Manifest, probes: Probes) -> Trial:
        spec = exact.settings.spec
        search = _searching(Snapshot(self._snapshot.path, exact, self._snapshot), spec)
        recall, error, qps = recall_of(search, probes)
        speed = speed_of(search, probes, qps)
        return Trial(
            spec=spec,
            n_rows=exact.n_rows,
            recall=recall,
            recall_error=error,
            p50_ms=speed.p50_ms,
            p99_ms=speed.p99_ms,
            qps=qps,
        )

    def _verified(self, new: Manifest, best: Trial, probes: Probes) -> Trial:
        search = _searching(Snapshot(self._snapshot.path, new, self._snapshot), best.spec)
        recall, error, qps = recall_of(search, probes)
        return replace(best, recall=recall, recall_error=error, qps=qps)

    def _probes(self, chosen: Sequence[Finalist]) -> tuple[Probes, Probes]:
        """Find exact neighbours over all rows, of as many queries as there is time for."""
        k, asked = self._budget.settings.k, self._asked
        exact = Snapshot(self._snapshot.path, _without_ann(self._snapshot.manifest), self._snapshot)
        search = _searching(exact, exact.settings.spec)
        start = time.monotonic()
        search(asked.choosing[0][:FEWEST_QUERIES], k + 1)
        per_query = (time.monotonic() - start) / min(FEWEST_QUERIES, len(asked.choosing[0]))
        affordable = int(TRUTH_SHARE * self._budget.seconds_left / per_query / 2)
        n = max(affordable, FEWEST_QUERIES)
        parts = [(q[:n], own[:n]) for q, own in (asked.choosing, asked.verifying)]
        if n < len(asked.choosing[0]):
            note(f"Exact neighbours over all rows take long: {n:,} queries of each kind are used.")
        with progress("Finding exact neighbours", sum(len(q) for q, _ in parts), "queries") as done:
            first, second = (make_probes(q, own, k, search, done) for q, own in parts)
        return first, second


def _budget(snapshot: Snapshot, settings: TuneSettings) -> Budget:
    if snapshot.n_rows < 3:
        raise IndexStoreError(f"{snapshot.path} holds too little to tune anything.")
    segments = tuple(segment.n_rows for segment in snapshot.segments)
    if advice := upkeep.advice(snapshot.manifest):
        note(f"`index compact` first would serve this index better: {advice}.")
    return Budget(segments=segments, dim=snapshot.settings.dim, settings=settings)


def _draw(
    snapshot: Snapshot,
    settings: TuneSettings,
    queries: Floats | None,
    origin: str,
    rng: np.random.Generator,
) -> tuple[Asked, Sample]:
    """Draw rows for the sample and, unless queries are given, other rows as queries."""
    n_own = 0 if queries is not None else min(settings.n_queries, max(snapshot.n_rows // 2, 2))
    n_sample = min(settings.sample_rows, snapshot.n_rows - n_own)
    if settings.memory_bytes is not None:
        n_sample = max(min(n_sample, settings.memory_bytes // (16 * snapshot.settings.dim)), 1)
    rows = _live_rows(snapshot, n_own + n_sample, rng)
    own = rng.permutation(rows)[:n_own]
    sample = Sample.of(snapshot.vectors(rows[~np.isin(rows, own)]))
    if queries is None:
        queries, rows = snapshot.vectors(own), own
    else:
        queries = queries[rng.permutation(len(queries))[: settings.n_queries]]
        queries = normalised(queries) if snapshot.settings.metric == "cosine" else queries
        rows = np.full(len(queries), -1, np.int64)
    half = len(queries) // 2
    if half < 1:
        raise IndexStoreError(
            "There must be at least 2 queries: some to choose by, some to verify."
        )
    parts = [(queries[:half], rows[:half]), (queries[half:], rows[half:])]
    return Asked(parts[0], parts[1], origin), sample


def _live_rows(snapshot: Snapshot, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw rows that are not deleted, each segment giving its share, rising."""
    drawn = []
    for i, segment in enumerate(snapshot.segments):
        live = snapshot.live(i)
        rows = segment.rows if live is None else segment.rows[live]
        share = min(-(-count * len(rows) // snapshot.n_rows), len(rows))
        drawn.append(np.sort(rng.choice(rows, share, replace=False)))
    together = np.concatenate(drawn)
    return np.sort(rng.choice(together, min(count, len(together)), replace=False))


def _sweep(sample: Sample, asked: Asked, snapshot: Snapshot, budget: Budget) -> list[Measured]:
    settings = budget.settings
    kinds = families(budget.largest, snapshot.settings.dim)
    search = searching(sample, None, snapshot.settings)
    probes = make_probes(*_foreign(asked), settings.k, search)
    measured = []
    with progress("Comparing candidates", len(kinds), "candidates") as advance:
        for found in sweep(kinds, sample, probes, snapshot.settings, budget):
            measured.append(found)
            advance(1)
    return measured


def _foreign(asked: Asked) -> tuple[Floats, NDArray[np.int64]]:
    """The queries to choose by; none of them is in the sample."""
    return asked.choosing[0], np.full(len(asked.choosing[0]), -1, np.int64)


def _searching(snapshot: Snapshot, spec: IndexSpec) -> Search:
    settings = replace(snapshot.settings, spec=spec)
    changed = replace(snapshot.manifest, settings=settings)
    return Snapshot(snapshot.path, changed, snapshot).search


def _without_ann(manifest: Manifest) -> Manifest:
    exact = manifest.without({s.ann.name for s in manifest.segments if s.ann})
    return replace(exact, settings=replace(exact.settings, spec=IndexSpec()))


def _trials(measured: Sequence[Measured]) -> list[Trial]:
    return [trial for family in measured for trial in family.trials]


def _nothing_fits(candidates: Sequence[Finalist], settings: TuneSettings) -> str:
    reasons = "; ".join(f"{f.trial.spec.factory}: {f.refused}" for f in candidates[:4])
    return (
        f"No index with recall {settings.recall} keeps within what is allowed ({reasons}). "
        "The index is as it was; allow more, or ask for less recall."
    )
