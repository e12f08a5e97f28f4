"""The trials of a tuning: rows and queries drawn for them, and the finalists over all rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import memory
from sbert_search.base.machine import library_versions, machine
from sbert_search.base.progress import note, progress
from sbert_search.errors import IndexStoreError
from sbert_search.index.norms import unit_vectors
from sbert_search.index.settings import IndexSpec, Trial, Tuning
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.tuning.measuring import Floats, GroundTruth, Search, find_ground_truth
from sbert_search.index.tuning.settings import Budget, TuneSettings
from sbert_search.index.tuning.sweep import Candidate, Sample, climb, fastest, measure, unmeasured


@dataclass(frozen=True, slots=True)
class QuerySplit:
    """Queries to choose an index with, and held-out queries to verify the choice with.

    Each is a pair of arrays: the queries, float32 (n_queries, dim), and the row of the index whose
    vector the query is, int64 (n_queries,); -1 for queries from elsewhere.
    """

    choosing: tuple[Floats, NDArray[np.int64]]
    verifying: tuple[Floats, NDArray[np.int64]]
    origin: str  # where the queries came from, in words


def draw_sample(
    snapshot: Snapshot,
    settings: TuneSettings,
    queries: Floats | None,
    origin: str,
    rng: np.random.Generator,
) -> tuple[QuerySplit, Sample]:
    """Draw rows for the sample and, unless queries are given, other rows as queries; split these.

    Of given queries, at most ``n_queries`` of the settings are drawn. The vectors of the sample
    take at most a quarter of the memory budget.
    """
    n_drawn = 0 if queries is not None else min(settings.n_queries, max(snapshot.n_rows // 2, 2))
    n_sample = min(settings.sample_rows, snapshot.n_rows - n_drawn)
    if (limit := memory.limit()) is not None:
        n_sample = max(min(n_sample, limit // (16 * snapshot.settings.dim)), 1)
    all_rows = _live_rows(snapshot, n_drawn + n_sample, rng)
    rows = rng.permutation(all_rows)[:n_drawn]  # the rows that serve as queries
    sample = Sample.of(snapshot.vectors(all_rows[~np.isin(all_rows, rows)]))
    if queries is None:
        queries = snapshot.vectors(rows)
    else:
        queries = queries[rng.permutation(len(queries))[: settings.n_queries]]
        queries = unit_vectors(queries) if snapshot.settings.metric == "cosine" else queries
        rows = np.full(len(queries), -1, np.int64)
    half = len(queries) // 2
    if half < 1:
        count = "is 1 query" if len(queries) else "are no queries"
        raise IndexStoreError(
            f"There {count}; a tuning needs at least 2: one to choose an index by and one to "
            "verify it with."
        )
    parts = [(queries[:half], rows[:half]), (queries[half:], rows[half:])]
    return QuerySplit(parts[0], parts[1], origin), sample


def _live_rows(snapshot: Snapshot, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw live rows from each segment, in proportion to its number of live rows; ascending."""
    drawn = []
    for i in range(len(snapshot.segments)):
        rows = snapshot.live_rows_of(i)
        share = min(-(-count * len(rows) // snapshot.n_rows), len(rows))
        drawn.append(np.sort(rng.choice(rows, share, replace=False)))
    together = np.concatenate(drawn)
    return np.sort(rng.choice(together, min(count, len(together)), replace=False))


FEWEST_QUERIES = 50  # fewest queries that are taken of each half if time is short
TRUTH_SHARE = 0.2  # share of the remaining time for finding exact neighbours over all rows


@dataclass(frozen=True, slots=True)
class Built:
    """An index of one spec over all rows, not yet committed."""

    manifests: tuple[Manifest, ...]  # the new state of the index, or of each shard
    # returns a function that searches with the search parameters of a spec
    search_by: Callable[[IndexSpec], Search]

    @property
    def size_bytes(self) -> int:
        """Bytes of the FAISS files."""
        return sum(file.size_bytes for m in self.manifests for file in m.faiss_files)


class FullTrials:
    """Builds finalists over all rows, tries their search parameters and verifies the best one.

    ``built`` has the best trial of each finalist that was built; ``tuning`` is None before
    `decide`.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        queries: QuerySplit,
        budget: Budget,
        front: Sequence[Trial],
        others: Sequence[str],
    ) -> None:
        self._snapshot, self._queries, self._budget = snapshot, queries, budget
        self._front, self._others = tuple(front), list(others)
        self._options: dict[IndexSpec, Built] = {}
        self.built: list[Trial] = []
        self.tuning: Tuning | None = None

    def decide(
        self, chosen: Sequence[Candidate], build: Callable[[IndexSpec], Built]
    ) -> tuple[Built, Tuning]:
        """Build the finalists, and return the best one with its measurements.

        If no finalist reaches the targets, it is an exact scan, without FAISS files.
        """
        settings = self._budget.settings
        choosing, verifying = self.find_ground_truths()
        for finalist in chosen:
            self._build(finalist, choosing, build)
        best = fastest(self.built, settings.recall, settings.latency_ms)
        if best is None:
            note("No index built over all rows reaches the targets; searching exactly.")
            best = self._exact_trial(choosing, build)
        option = self._options[best.spec]
        verified = measure(option.search_by(best.spec), best.spec, verifying, best)
        self.tuning = Tuning(
            recall=settings.recall,
            k=settings.k,
            queries=self._queries.origin,
            n_choosing=len(choosing.queries),
            n_verifying=len(verifying.queries),
            verified=verified,
            sampled=self._front,
            others=(*self._others, *(_measured(trial) for trial in self.built if trial != best)),
            seconds=time.monotonic() - self._budget.started,
            machine=machine(),
            libraries=library_versions(),
        )
        return option, self.tuning

    def _build(
        self, finalist: Candidate, choosing: GroundTruth, build: Callable[[IndexSpec], Built]
    ) -> None:
        full, settings = finalist.measured.full, self._budget.settings
        if full is None:
            self.built.append(self._exact_trial(choosing, build))
            return
        # The first finalist is always built, the second one only if the time suffices.
        if self.built and (why := self._budget.time_refusal(finalist.build_s)):
            self._others.append(f"{full.spec.factory} was not built over all rows: {why}.")
            note(self._others[-1])
            return
        start = time.monotonic()
        option = build(full.spec)
        unmeasured_trial = replace(
            finalist.trial,
            n_rows=self._snapshot.n_rows,
            size_bytes=option.size_bytes,
            predicted_bytes=finalist.size_bytes,
            build_s=time.monotonic() - start,
            predicted_build_s=finalist.build_s,
        )
        ladders = finalist.measured.family.ladders(full.spec)
        search_by = option.search_by
        with progress(f"Searching {full.spec.factory}", None, "settings") as advance:
            trials = climb(search_by, ladders, choosing, settings.recall, unmeasured_trial, advance)
        best = fastest(trials, settings.recall, settings.latency_ms)
        best = best or max(trials, key=lambda t: t.recall)
        self._options[best.spec] = option
        self.built.append(best)

    def _exact_trial(self, truth: GroundTruth, build: Callable[[IndexSpec], Built]) -> Trial:
        spec = IndexSpec()
        self._options[spec] = option = build(spec)
        return measure(option.search_by(spec), spec, truth, unmeasured(spec, self._snapshot.n_rows))

    def find_ground_truths(self) -> tuple[GroundTruth, GroundTruth]:
        """Find exact neighbours over all rows, for the choosing and for the verifying queries.

        If the time does not suffice for all queries, only the first ones of each half are used.
        """
        k, queries = self._budget.settings.k, self._queries
        search = partial(self._snapshot.search, exact=True)
        first = queries.choosing[0][:FEWEST_QUERIES]
        start = time.monotonic()
        search(first, k + 1)
        per_query = (time.monotonic() - start) / len(first)
        affordable = int(TRUTH_SHARE * self._budget.seconds_left / per_query / 2)
        n = max(affordable, FEWEST_QUERIES)
        if n < len(queries.choosing[0]):
            note(
                f"Finding exact neighbours takes long: {n:,} queries are used to choose, and {n:,} "
                "to verify."
            )
        parts = [(q[:n], own[:n]) for q, own in (queries.choosing, queries.verifying)]
        with progress("Finding exact neighbours", sum(len(q) for q, _ in parts), "queries") as done:
            choosing, verifying = (find_ground_truth(q, own, k, search, done) for q, own in parts)
        return choosing, verifying


def how(spec: IndexSpec) -> str:
    """Name an index with the search parameters that it uses."""
    parts = ["exact scan" if spec.is_flat else spec.factory]
    parts += [f"nprobe {spec.nprobe}"] if spec.n_lists else []
    parts += [f"ef {spec.ef_search}"] if spec.is_hnsw else []
    parts += [f"refine {spec.refine}"] if spec.refine > 1 else []
    return " ".join(parts)


def _measured(trial: Trial) -> str:
    recall, error = trial.recall, trial.recall_error
    measured = f"recall {recall:.3f} ± {error:.3f}, {trial.qps:,.0f} queries/s"
    return f"{how(trial.spec)}: measured over all rows: {measured}."


def without_faiss(manifest: Manifest, spec: IndexSpec) -> Manifest:
    """Return a copy of a state with another spec and without FAISS files."""
    bare = manifest.without([file.name for file in manifest.faiss_files])
    return bare.with_settings(replace(bare.settings, spec=spec))
