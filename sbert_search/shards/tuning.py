"""`index tune` of a sharded index: one spec for all shards, chosen by searches of all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sbert_search.index.maintenance import compaction
from sbert_search.index.spec import IndexSpec
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.storage.transaction import Transaction
from sbert_search.index.trials import Trial, Tuning
from sbert_search.index.tuning.choice import Candidate, fastest, finalists, pareto
from sbert_search.index.tuning.full_trials import FullTrials, bare
from sbert_search.index.tuning.recall import Floats, GroundTruth, Search
from sbert_search.index.tuning.sampling import draw
from sbert_search.index.tuning.settings import TuneSettings
from sbert_search.index.tuning.sweep import climb, measure, unmeasured
from sbert_search.index.tuning.tune import LOCK_WAIT_S, TuneReport, all_trials, budget_of, tune
from sbert_search.index.writer import IndexWriter
from sbert_search.runtime.progress import note, progress
from sbert_search.runtime.provenance import library_versions, machine
from sbert_search.shards.snapshot import ShardedSnapshot
from sbert_search.shards.store import ShardedStore


def tune_shards(
    store: ShardedStore,
    settings: TuneSettings,
    queries: Floats | None = None,
    *,
    origin: str = "documents",
    dry_run: bool = False,
) -> TuneReport:
    """Find the fastest spec with which a search of all shards reaches the recall, and commit it.

    FAISS index types are compared on a sample of the rows of all shards. The best ones are built in
    every shard, and their search parameters are chosen by searches of all shards together.
    Arguments and errors as for `tune.tune`.
    """
    if not dry_run:
        with store.writer():  # a folder that cannot be written fails now, not after minutes
            pass
    report = tune(store, settings, queries, origin=origin, dry_run=True)
    if dry_run:
        return report
    with store.writer(at_least_s=LOCK_WAIT_S) as writer:
        budget = budget_of(writer.snapshot, settings)
        rng = np.random.default_rng(settings.seed)
        split, _ = draw(writer.snapshot, settings, queries, origin, rng)
        front = tuple(pareto(all_trials(report.measured)))
        truths = FullTrials(writer.snapshot, split, budget, front).find_ground_truths()
        with writer.together() as shards:
            trials = _ShardTrials(writer.snapshot, shards, settings, truths[0])
            for finalist in finalists(list(report.outlook)):
                trials.build(finalist, budget.largest)
            best = trials.best()
            verified = measure(trials.searching(best.spec), best.spec, truths[1], best)
            tuning = Tuning(
                recall=settings.recall,
                k=settings.k,
                queries=split.origin,
                n_choosing=len(truths[0].queries),
                n_verifying=len(truths[1].queries),
                verified=verified,
                sampled=front,
                seconds=report.seconds + time.monotonic() - budget.started,
                machine=machine(),
                libraries=library_versions(),
            )
            trials.keep(best.spec, tuning)
    return replace(report, built=tuple(trials.built), tuning=tuning, seconds=tuning.seconds)


class _ShardTrials:
    """FAISS indexes of several specs, built in all shards and not committed yet.

    Args:
        snapshot: The state of the index.
        writers: The writers of the shards.
        settings: The recall and latency to reach, and the memory limit.
        truth: Queries to choose by, with their exact neighbours.
    """

    def __init__(
        self,
        snapshot: ShardedSnapshot,
        writers: Sequence[IndexWriter],
        settings: TuneSettings,
        truth: GroundTruth,
    ) -> None:
        self._snapshot, self._writers, self._settings = snapshot, writers, settings
        self._truth = truth
        self._states: dict[IndexSpec, list[Manifest]] = {}
        self.built: list[Trial] = []

    def build(self, finalist: Candidate, largest: int) -> None:
        """Build a finalist in every shard and find its best search parameters."""
        full = finalist.measured.full
        if full is None:
            self._exact()
            return
        started = time.monotonic()
        states = [self._rewritten(writer, full.spec) for writer in self._writers]
        blank = replace(
            finalist.trial,
            n_rows=self._snapshot.n_rows,
            size_bytes=sum(s.ann.size_bytes for m in states for s in m.segments if s.ann),
            predicted_bytes=finalist.size_bytes * len(states),
            build_s=time.monotonic() - started,
            predicted_build_s=finalist.build_s,
        )
        ladders = finalist.measured.family.ladders(largest)
        recall = self._settings.recall
        with progress(f"Searching {full.spec.factory}", None, "settings") as advance:
            trials = climb(self.searching, ladders, self._truth, recall, blank, advance)
        best = fastest(trials, recall, self._settings.latency_ms)
        best = best or max(trials, key=lambda trial: trial.recall)
        self._states[best.spec] = states
        self.built.append(best)

    def best(self) -> Trial:
        """Give all shards the fastest spec that reaches the targets, else exact search.

        Returns:
            The trial of that spec.
        """
        best = fastest(self.built, self._settings.recall, self._settings.latency_ms)
        if best is None:
            note("No index built over all rows reaches the targets; searching exactly.")
            best = self._exact()
        self.keep(best.spec, None)
        return best

    def keep(self, spec: IndexSpec, tuning: Tuning | None) -> None:
        """Give all shards the FAISS files and the search parameters of a spec that was built."""
        for writer, state in zip(self._writers, self._states[spec], strict=True):
            settings = replace(state.settings, spec=spec)
            writer.rewrite(partial(_state, replace(state, settings=settings, tuning=tuning)))

    def searching(self, spec: IndexSpec) -> Search:
        """Return a function that searches the present states of all shards with another spec."""
        return self._snapshot.with_states(
            [w.snapshot.with_spec(spec) for w in self._writers]
        ).search

    def _exact(self) -> Trial:
        spec = IndexSpec()
        self._states[spec] = [self._rewritten(writer, spec) for writer in self._writers]
        blank = unmeasured(spec, self._snapshot.n_rows)
        trial = measure(self.searching(spec), spec, self._truth, blank)
        self.built.append(trial)
        return trial

    def _rewritten(self, writer: IndexWriter, spec: IndexSpec) -> Manifest:
        """Give a shard the FAISS files of a spec, and return its state."""
        limit = self._settings.memory_bytes

        def change(work: Transaction) -> Manifest:
            new = bare(writer.snapshot.manifest, spec)
            return compaction.with_ann(
                work, writer.snapshot, new, memory_bytes=limit, n_shards=len(self._writers)
            )

        writer.rewrite(change)
        return writer.snapshot.manifest


def _state(manifest: Manifest, work: Transaction) -> Manifest:
    """Return the manifest itself, as the change of `IndexWriter.rewrite`: it needs no new files."""
    return manifest
