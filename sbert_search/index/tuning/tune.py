"""`index tune`: candidates on a sample, finalists on all rows, the best one committed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import IndexStoreError
from sbert_search.index.maintenance import merge_policy
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.store import IndexStore
from sbert_search.index.trials import Trial, Tuning
from sbert_search.index.tuning.candidates import families
from sbert_search.index.tuning.choice import Finalist, finalists, outlook, pareto
from sbert_search.index.tuning.full_trials import FullTrials
from sbert_search.index.tuning.recall import Floats, find_ground_truth
from sbert_search.index.tuning.sampling import QuerySplit, draw
from sbert_search.index.tuning.settings import Budget, TuneSettings
from sbert_search.index.tuning.sweep import MeasuredFamily, Sample, searching, sweep
from sbert_search.runtime.progress import note, progress

LOCK_WAIT_S = 60.0  # how long other writers may take before what was measured is given up


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

    measured: tuple[MeasuredFamily, ...]
    outlook: tuple[Finalist, ...]
    built: tuple[Trial, ...]
    tuning: Tuning | None
    seconds: float

    @property
    def trials(self) -> list[Trial]:
        """Everything measured on the sample."""
        return [trial for family in self.measured for trial in family.trials]


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
        IndexStoreError: There is nothing to search, nothing keeps within the budget, or the folder
            cannot be written.
        IndexLocked: Another process writes.
    """
    if not dry_run:
        with store.writer():  # or this is known only after minutes of measuring
            pass
    before = store.snapshot
    rng = np.random.default_rng(settings.seed)
    drawn = partial(draw, settings=settings, queries=queries, origin=origin, rng=rng)
    budget = _budget(before, settings)
    try:
        asked, sample = drawn(before)
        measured = _sweep(sample, asked, before, budget)
        final, candidates, chosen = _finals(before, asked, budget, measured)
        if not dry_run:
            with store.writer(at_least_s=LOCK_WAIT_S) as writer:
                if (newest := writer.snapshot) is not before:
                    _require_alike(before, newest)
                    note(f"{store.path} changed meanwhile; choosing over its newest state.")
                    budget = replace(_budget(newest, settings), started=budget.started)
                    asked = drawn(newest)[0]
                    final, candidates, chosen = _finals(newest, asked, budget, measured)
                writer.rewrite(partial(final.decide, chosen))
    except KeyboardInterrupt as interrupt:
        if store.snapshot.manifest.tuning == before.manifest.tuning:
            interrupt.add_note(f"{store.path} is as it was; tuning starts over.")
        raise
    return TuneReport(
        measured=tuple(measured),
        outlook=tuple(candidates),
        built=tuple(final.built),
        tuning=final.tuning,
        seconds=time.monotonic() - budget.started,
    )


def _finals(
    snapshot: Snapshot, asked: QuerySplit, budget: Budget, measured: Sequence[MeasuredFamily]
) -> tuple[FullTrials, list[Finalist], Sequence[Finalist]]:
    """Say what would be built over all rows of a state, among which candidates.

    Raises:
        IndexStoreError: Nothing keeps within the budget.
    """
    candidates = outlook(measured, budget)
    chosen = finalists(candidates)
    if not chosen:
        raise IndexStoreError(_nothing_fits(candidates, budget.settings))
    return FullTrials(snapshot, asked, budget, pareto(_trials(measured))), candidates, chosen


def _require_alike(before: Snapshot, newest: Snapshot) -> None:
    """Refuse to go by measurements of other vectors than those that are there now."""
    told = [(s.settings.identity, s.settings.dim, s.settings.metric) for s in (before, newest)]
    if told[0] != told[1]:
        raise IndexStoreError(
            f"{newest.path} was replaced by an index of another model or metric; tune it again."
        )


def _sizes(snapshot: Snapshot) -> tuple[int, ...]:
    return tuple(segment.n_rows for segment in snapshot.segments)


def _budget(snapshot: Snapshot, settings: TuneSettings) -> Budget:
    if snapshot.n_rows < 3:
        raise IndexStoreError(f"{snapshot.path} holds too little to tune anything.")
    if advice := merge_policy.advice(snapshot.manifest):
        note(f"`index compact` first would serve this index better: {advice}.")
    return Budget(segments=_sizes(snapshot), dim=snapshot.settings.dim, settings=settings)


def _sweep(
    sample: Sample, asked: QuerySplit, snapshot: Snapshot, budget: Budget
) -> list[MeasuredFamily]:
    settings = budget.settings
    kinds = families(budget.largest, snapshot.settings.dim)
    search = searching(sample, None, snapshot.settings)
    truth = find_ground_truth(*_foreign(asked), settings.k, search)
    measured = []
    with progress("Comparing candidates", len(kinds), "candidates") as advance:
        for found in sweep(kinds, sample, truth, snapshot.settings, budget):
            measured.append(found)
            advance(1)
    return measured


def _foreign(asked: QuerySplit) -> tuple[Floats, NDArray[np.int64]]:
    """The queries to choose by; none of them is in the sample."""
    return asked.choosing[0], np.full(len(asked.choosing[0]), -1, np.int64)


def _trials(measured: Sequence[MeasuredFamily]) -> list[Trial]:
    return [trial for family in measured for trial in family.trials]


def _nothing_fits(candidates: Sequence[Finalist], settings: TuneSettings) -> str:
    reasons = "; ".join(f"{f.trial.spec.factory}: {f.refused}" for f in candidates[:4])
    return (
        f"No index with recall {settings.recall} keeps within what is allowed ({reasons}). "
        "The index is as it was; allow more, or ask for less recall."
    )
