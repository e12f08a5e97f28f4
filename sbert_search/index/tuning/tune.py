"""`index tune`: compare kinds of index, build the best over all rows, commit one, report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sbert_search.base import memory, svg
from sbert_search.base.progress import note, progress
from sbert_search.embed.arguments import CheckedOptions, ModelLike
from sbert_search.errors import ConfigError, IndexStoreError
from sbert_search.index.settings import IndexSpec, Trial, Tuning
from sbert_search.index.shards.opening import joined
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.store import IndexStore
from sbert_search.index.tuning.measuring import Floats, find_ground_truth
from sbert_search.index.tuning.settings import TOO_LATE, Budget, TuneSettings, families
from sbert_search.index.tuning.sweep import (
    Candidate,
    MeasuredFamily,
    Sample,
    finalists,
    pareto,
    predict_costs,
    search_of,
    sweep,
)
from sbert_search.index.tuning.trials import (
    Built,
    FullTrials,
    QuerySplit,
    draw_sample,
    how,
    without_faiss,
)
from sbert_search.index.upkeep import compaction, merge_policy
from sbert_search.index.writer import IndexWriter
from sbert_search.text.labelled.retrieval import read_queries

if TYPE_CHECKING:
    from sbert_search.index.index import Index

WORK_BYTES = 64 << 20  # memory that a tuning needs in addition to its sample of vectors
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

    Example:
        >>> Index.open("my.index").tune().built[0].recall
        1.0
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


def tune_index(
    index: Index,
    settings: TuneSettings | None,
    queries: str | Path | None,
    model: ModelLike | None,
    options: CheckedOptions,
    *,
    dry_run: bool,
) -> TuneReport:
    """Tune an index with or without shards; see `Index.tune`."""
    settings = settings or TuneSettings()
    if (limit := memory.limit()) is not None:
        memory.require(WORK_BYTES + limit // 4, "Tuning")
    vectors, origin = None, "documents"
    if queries is not None:
        embedder = index.matching_embedder(model, **options)
        asked = read_queries(Path(queries))
        vectors = embedder.encode_query([query.text for query in asked])
        origin = f"queries of {Path(queries).name}"
    elif names := sorted([*(["model"] if model is not None else []), *options]):
        raise ConfigError(
            f"{', '.join(names)}: no model is opened, since documents of the index serve as "
            "queries. Name a file of queries, or leave these options out."
        )
    return tune(index.store, settings, vectors, origin=origin, dry_run=dry_run)


def tune(
    store: IndexStore,
    settings: TuneSettings,
    queries: Floats | None = None,
    *,
    origin: str = "documents",
    dry_run: bool = False,
) -> TuneReport:
    """Find the fastest spec that reaches a recall, and commit it with its FAISS files.

    The index does not change before the commit, so an interrupt loses only the measurements.
    ``queries`` None: vectors of the index serve as queries, and none counts as its own neighbour.
    ``origin`` says in words where the queries came from. A dry run measures, predicts, and changes
    nothing.
    """
    if not dry_run:
        with store.writer():  # a folder that cannot be written fails now, not after minutes
            pass
    sampled = store.snapshot  # the state from which the sample is drawn
    rng = np.random.default_rng(settings.seed)
    drawn = partial(draw_sample, settings=settings, queries=queries, origin=origin, rng=rng)
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
                _commit_best(writer, final, chosen)
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


def _commit_best(writer: IndexWriter, final: FullTrials, chosen: Sequence[Candidate]) -> None:
    """Build the finalists over all rows, in every shard if there are any, and commit the best."""
    snapshot, options = writer.snapshot, list[tuple[Manifest, ...]]()
    with writer.rewriting() as works:

        def build(spec: IndexSpec) -> Built:
            states = []
            for part, work in zip(snapshot.parts, works, strict=True):
                new = compaction.with_ann(
                    work,
                    part,
                    without_faiss(part.manifest, spec),
                    n_shards=snapshot.n_shards,
                )
                states.append(Snapshot(work.folder, new, part))
            opened = joined(snapshot.folder, snapshot.shards, states)
            manifests = tuple(state.manifest for state in states)
            options.append(manifests)
            return Built(manifests, lambda spec: opened.with_spec(spec).search)

        best, tuning = final.decide(chosen, build)
        of_parts = zip(*options, strict=True)
        for work, new, tried in zip(works, best.manifests, of_parts, strict=True):
            losers = {file.on_disk for state in tried for file in state.files}
            work.remove(losers - {file.on_disk for file in (*new.files, *work.old.files)})
            settings = replace(new.settings, spec=tuning.verified.spec)
            work.commit(replace(new.with_settings(settings), tuning=tuning))


def _plan_full_trials(
    snapshot: Snapshot, query_split: QuerySplit, budget: Budget, measured: Sequence[MeasuredFamily]
) -> tuple[FullTrials, list[Candidate], Sequence[Candidate]]:
    candidates = predict_costs(measured, budget)
    chosen = finalists(candidates)
    if not chosen:
        reasons = "; ".join(f"{f.trial.spec.factory}: {f.refused}" for f in candidates[:4])
        raise IndexStoreError(
            f"No index with recall {budget.settings.recall} is within the limits ({reasons}). The "
            "index is unchanged; raise the limits, or pass a lower recall."
        )
    sentences = _skipped(measured)
    if late := [sentence for sentence in sentences if TOO_LATE in sentence]:
        note(
            f"{len(late)} of {len(measured)} kinds of index were not compared for want of time; "
            "--max-minutes gives more."
        )
    sentences += [_expected(candidate) for candidate in candidates if candidate not in chosen]
    front = pareto(trial for family in measured for trial in family.trials)
    return FullTrials(snapshot, query_split, budget, front, sentences), candidates, chosen


def budget_of(snapshot: Snapshot, settings: TuneSettings) -> Budget:
    """Return the limits of a tuning that starts now; note if compacting should come first."""
    if snapshot.n_rows < 3:
        raise IndexStoreError(
            f"{snapshot.path} has {snapshot.n_rows} passages; a tuning needs at least 3. Without "
            "a tuning, searches of so few passages are exact and fast."
        )
    if advice := merge_policy.advice(snapshot):
        note(f"Run `index compact` before tuning, for better results: {advice}.")
    return Budget(
        segments=tuple(segment.n_rows for segment in snapshot.segments),
        dim=snapshot.settings.dim,
        settings=settings,
        n_shards=snapshot.n_shards,
    )


def _sweep(
    sample: Sample, query_split: QuerySplit, snapshot: Snapshot, budget: Budget
) -> list[MeasuredFamily]:
    settings = budget.settings
    kinds = families(sum(budget.segments), snapshot.settings.dim)
    search = search_of(sample, None, snapshot.settings)
    queries, _ = query_split.choosing
    # The sample lacks the rows of the queries.
    truth = find_ground_truth(queries, np.full(len(queries), -1), settings.k, search)
    measured = []
    with progress("Comparing candidates", len(kinds), "candidates") as advance:
        for family in sweep(kinds, sample, truth, snapshot.settings, budget):
            measured.append(family)
            advance(1)
    return measured


COLUMNS = ("index", "recall", "p50/p99 ms", "queries/s", "bytes/vector", "build s")
_TOP, _HEIGHT = 26, 380  # pixels of the plot's panel


def tables(report: TuneReport) -> dict[str, list[tuple[str, ...]]]:
    """Return the tables of a report by title: the sample's and, after a build, all rows'.

    The first has the best trial of each kind of index. The second has each index that was built,
    and the chosen one on held-out queries. Predicted bytes and seconds are in parentheses.
    """
    best = [_best(measured, report) for measured in report.measured if measured.trials]
    by_title = {f"On a sample of {best[0].n_rows:,} rows": [_row(trial) for trial in best]}
    if report.tuning:
        verified = report.tuning.verified
        built = [_row(trial) for trial in report.built]
        held_out = ("chosen, on held-out queries", *_row(verified)[1:])
        by_title[f"Over all {verified.n_rows:,} rows"] = [*built, held_out]
    return by_title


def remarks(report: TuneReport) -> list[str]:
    """Return a sentence for each kind not built on the sample, and each that got the recall.

    The first gives the reason; the second predicts latency and build time over all rows, or says
    why they exceed the budget.
    """
    return _skipped(report.measured) + [_expected(candidate) for candidate in report.outlook]


def verdict(tuning: Tuning) -> str:
    """Return the chosen index and its measurements on held-out queries as one line."""
    trial = tuning.verified
    return (
        f"{how(trial.spec)}: recall@{tuning.k} {trial.recall:.3f} ± {trial.recall_error:.3f} on "
        f"{tuning.n_verifying:,} held-out queries ({tuning.queries}), p50 {trial.p50_ms:.3g} ms, "
        f"p99 {trial.p99_ms:.3g} ms; the target recall is {tuning.recall:g}"
    )


def draw(report: TuneReport) -> str:
    """Plot recall against queries per second on the sample: all trials, and their Pareto front."""
    trials = report.trials
    names = [m.family.name for m in report.measured if m.trials]
    panel = svg.Panel(
        "queries per second (one thread) against recall, on the sample",
        svg.Axis.of([t.recall for t in trials]),
        svg.Axis.of([t.qps for t in trials], log=True),
        _TOP,
        _HEIGHT,
    )
    parts = [panel.frame(), panel.line([(t.recall, t.qps) for t in pareto(trials)], "#999")]
    for i, measured in enumerate(m for m in report.measured if m.trials):
        for t in measured.trials:
            label = f"{how(t.spec)}: recall {t.recall:.3f}, {t.qps:,.0f} queries/s"
            parts.append(panel.dot((t.recall, t.qps), svg.colour_of(i), label))
    parts.append(svg.legend(names, _HEIGHT + 40))
    return svg.document("".join(parts), _HEIGHT + 40 + 16 * len(names))


def _best(measured: MeasuredFamily, report: TuneReport) -> Trial:
    """Return the trial that `predict_costs` chose, or else the one with the highest recall."""
    for candidate in report.outlook:
        if candidate.measured is measured:
            return candidate.trial
    return max(measured.trials, key=lambda t: t.recall)


def _skipped(measured: Sequence[MeasuredFamily]) -> list[str]:
    return [f"{one.family.name} was not built: {one.skipped}." for one in measured if one.skipped]


def _expected(candidate: Candidate) -> str:
    name = how(candidate.trial.spec)
    if candidate.refused:
        return f"{name} was not built over all rows: {candidate.refused}."
    cost = f"{candidate.latency_ms:.3g} ms per query and {candidate.build_s:,.0f} s to build"
    return f"{name}: predicted over all rows: {cost}."


def _row(trial: Trial) -> tuple[str, ...]:
    predicted = trial.predicted_bytes / trial.n_rows
    return (
        how(trial.spec),
        f"{trial.recall:.3f}",
        f"{trial.p50_ms:.3g}/{trial.p99_ms:.3g}",
        f"{trial.qps:,.0f}",
        f"{trial.bytes_per_vector:,.0f} ({predicted:,.0f})",
        f"{trial.build_s:.1f} ({trial.predicted_build_s:.1f})",
    )
