"""`index tune`: compare kinds of index on a sample, build the best over all rows, commit one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import note, progress
from sbert_search.errors import IndexStoreError
from sbert_search.index.maintenance import compaction, merge_policy
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.spec import IndexSpec
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.storage.transaction import Transaction
from sbert_search.index.store import IndexStore
from sbert_search.index.trials import Trial, Tuning
from sbert_search.index.tuning.candidates import families
from sbert_search.index.tuning.choice import Candidate, finalists, pareto, predict_costs
from sbert_search.index.tuning.full_trials import Built, FullTrials, bare
from sbert_search.index.tuning.recall import Floats, find_ground_truth
from sbert_search.index.tuning.sampling import QuerySplit, draw
from sbert_search.index.tuning.settings import Budget, TuneSettings
from sbert_search.index.tuning.sweep import MeasuredFamily, Sample, searching, sweep
from sbert_search.index.writer import IndexWriter

CommitBest: TypeAlias = Callable[[IndexWriter, FullTrials, Sequence[Candidate], int | None], None]
"""Builds finalists over all rows with a writer, and commits the best one. The last argument is the
memory limit in bytes; None: no limit."""

LOCK_WAIT_S = 60.0  # seconds to wait for other writers before the measurements are given up


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneReport:
    """The result of a tuning.

    Attributes:
        measured: Measurements of each family (kind of index) on the sample, or why there are none.
        outlook: Predictions over all rows for the families that reached the recall.
        built: The best measurement of each index built over all rows, on the queries with which one
            of these indexes is chosen. Empty after a dry run.
        tuning: The chosen index, measured on held-out queries. None after a dry run.
        seconds: Duration of the tuning.
    """

    measured: tuple[MeasuredFamily, ...]
    outlook: tuple[Candidate, ...]
    built: tuple[Trial, ...]
    tuning: Tuning | None
    seconds: float

    @property
    def trials(self) -> list[Trial]:
        """All measurements on the sample."""
        return [trial for family in self.measured for trial in family.trials]


def tune(
    store: IndexStore,
    settings: TuneSettings,
    queries: Floats | None = None,
    *,
    origin: str = "documents",
    dry_run: bool = False,
    commit_best: CommitBest | None = None,
) -> TuneReport:
    """Find the fastest spec that reaches a recall, and commit it with its FAISS files.

    A spec is a FAISS factory string with search settings. The index does not change before the
    commit at the end, so an interrupt loses only the measurements.

    Args:
        store: The index.
        settings: Targets and limits.
        queries: Typical queries, float32 (n_queries, dim). None: vectors of the index serve as
            queries, and none of them counts as its own neighbour.
        origin: Where the queries came from, in words.
        dry_run: Measure on the sample, predict, and change nothing.
        commit_best: Builds the finalists and commits the best one; None: as for an index without
            shards.

    Raises:
        IndexStoreError: The index is too small, there are fewer than 2 queries, no kind of index
            that reaches the recall is within the budget, or the folder cannot be written.
        IndexLocked: Another process is writing.
    """
    if not dry_run:
        with store.writer():  # a folder that cannot be written fails now, not after minutes
            pass
    sampled = store.snapshot  # the state from which the sample is drawn
    rng = np.random.default_rng(settings.seed)
    drawn = partial(draw, settings=settings, queries=queries, origin=origin, rng=rng)
    budget = budget_of(sampled, settings)
    try:
        query_split, sample = drawn(sampled)
        measured = _sweep(sample, query_split, sampled, budget)
        final, candidates, chosen = _plan_full_trials(sampled, query_split, budget, measured)
        if not dry_run:
            with store.writer(at_least_s=LOCK_WAIT_S) as writer:
                if (newest := writer.snapshot) is not sampled:
                    note(f"{store.path} changed meanwhile; the choice is made on its newest state.")
                    budget = replace(budget_of(newest, settings), started=budget.started)
                    query_split = drawn(newest)[0]
                    final, candidates, chosen = _plan_full_trials(
                        newest, query_split, budget, measured
                    )
                (commit_best or _commit_best)(writer, final, chosen, settings.memory_bytes)
    except KeyboardInterrupt as interrupt:
        if store.snapshot.manifest.tuning == sampled.manifest.tuning:
            interrupt.add_note(
                f"The index in {store.path} is unchanged; the next `index tune` measures again."
            )
        raise
    return TuneReport(
        measured=tuple(measured),
        outlook=tuple(candidates),
        built=tuple(final.built),
        tuning=final.tuning,
        seconds=time.monotonic() - budget.started,
    )


def _commit_best(
    writer: IndexWriter, final: FullTrials, chosen: Sequence[Candidate], memory_bytes: int | None
) -> None:
    """Build finalists of an index without shards, and commit the best with its measurements."""
    snapshot, options = writer.snapshot, list[Manifest]()

    def build(work: Transaction, spec: IndexSpec) -> Built:
        new = bare(snapshot.manifest, spec)
        new = compaction.with_ann(work, snapshot, new, memory_bytes=memory_bytes)
        options.append(new)
        opened = Snapshot(snapshot.folder, new, snapshot)
        return Built((new,), lambda spec: opened.with_spec(spec).search)

    def change(work: Transaction) -> Manifest:
        best, tuning = final.decide(chosen, partial(build, work))
        new = best.manifests[0]
        losers = {file.name for option in options for file in option.files}
        work.remove(losers - {file.name for file in (*new.files, *work.old.files)})
        settings = replace(new.settings, spec=tuning.verified.spec)
        return replace(new, settings=settings, tuning=tuning)

    writer.rewrite(change)


def _plan_full_trials(
    snapshot: Snapshot, query_split: QuerySplit, budget: Budget, measured: Sequence[MeasuredFamily]
) -> tuple[FullTrials, list[Candidate], Sequence[Candidate]]:
    """Choose the finalists to build over all rows of a state.

    Raises:
        IndexStoreError: No kind of index that reaches the recall is within the budget.
    """
    candidates = predict_costs(measured, budget)
    chosen = finalists(candidates)
    if not chosen:
        raise IndexStoreError(_nothing_fits(candidates, budget.settings))
    return (
        FullTrials(snapshot, query_split, budget, pareto(all_trials(measured))),
        candidates,
        chosen,
    )


def _sizes(snapshot: Snapshot) -> tuple[int, ...]:
    return tuple(segment.n_rows for segment in snapshot.segments)


def budget_of(snapshot: Snapshot, settings: TuneSettings) -> Budget:
    """Return the limits of a tuning that starts now; note if the index should be compacted first.

    Raises:
        IndexStoreError: The index is too small.
    """
    if snapshot.n_rows < 3:
        raise IndexStoreError(
            f"{snapshot.path} has {snapshot.n_rows} passages; a tuning needs at least 3. Without "
            "a tuning, searches of so few passages are exact and fast."
        )
    if advice := merge_policy.advice(snapshot):
        note(f"Run `index compact` before tuning, for better results: {advice}.")
    return Budget(
        segments=_sizes(snapshot),
        dim=snapshot.settings.dim,
        settings=settings,
        n_shards=snapshot.n_shards,
    )


def _sweep(
    sample: Sample, query_split: QuerySplit, snapshot: Snapshot, budget: Budget
) -> list[MeasuredFamily]:
    settings = budget.settings
    kinds = families(budget.largest * budget.n_shards, snapshot.settings.dim)
    search = searching(sample, None, snapshot.settings)
    truth = find_ground_truth(*_sample_queries(query_split), settings.k, search)
    measured = []
    with progress("Comparing candidates", len(kinds), "candidates") as advance:
        for family in sweep(kinds, sample, truth, snapshot.settings, budget):
            measured.append(family)
            advance(1)
    return measured


def _sample_queries(query_split: QuerySplit) -> tuple[Floats, NDArray[np.int64]]:
    """Return the queries to choose an index with, and -1 for each, since the sample lacks them."""
    return query_split.choosing[0], np.full(len(query_split.choosing[0]), -1, np.int64)


def all_trials(measured: Sequence[MeasuredFamily]) -> list[Trial]:
    """Return the measurements of all families."""
    return [trial for family in measured for trial in family.trials]


def _nothing_fits(candidates: Sequence[Candidate], settings: TuneSettings) -> str:
    reasons = "; ".join(f"{f.trial.spec.factory}: {f.refused}" for f in candidates[:4])
    return (
        f"No index with recall {settings.recall} is within the limits ({reasons}). The index is "
        "unchanged; raise the limits, or pass a lower recall."
    )
