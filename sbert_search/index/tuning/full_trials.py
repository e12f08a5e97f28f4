"""The last step of a tuning: build the finalists over all rows and verify the best one.

Finalists are the kinds of index that were chosen by measurements on a sample.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sbert_search.index.maintenance import compaction
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.spec import IndexSpec
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.storage.transaction import Transaction
from sbert_search.index.trials import Trial, Tuning
from sbert_search.index.tuning.choice import Candidate, fastest
from sbert_search.index.tuning.recall import GroundTruth, Search, find_ground_truth
from sbert_search.index.tuning.sampling import QuerySplit
from sbert_search.index.tuning.settings import Budget
from sbert_search.index.tuning.sweep import climb, measure, unmeasured
from sbert_search.runtime.progress import note, progress
from sbert_search.runtime.provenance import library_versions, machine

FEWEST_QUERIES = 50  # lowest number of queries to choose an index by, and of others to verify it
TRUTH_SHARE = 0.2  # share of the remaining time for finding exact neighbours over all rows


class FullTrials:
    """Builds finalists over all rows, tries their search parameters and verifies the best.

    Attributes:
        built: The best trial of each finalist.
        tuning: The result; None before `decide`.
    """

    def __init__(
        self, snapshot: Snapshot, queries: QuerySplit, budget: Budget, front: Sequence[Trial]
    ) -> None:
        self._snapshot, self._queries, self._budget = snapshot, queries, budget
        self._front = tuple(front)
        self._options: dict[IndexSpec, Manifest] = {}
        self.built: list[Trial] = []
        self.tuning: Tuning | None = None

    def decide(self, chosen: Sequence[Candidate], work: Transaction) -> Manifest:
        """Build the finalists, keep the files of the best one, and return a manifest with them.

        If no finalist reaches the targets, the manifest has no FAISS files, and searches are exact.
        """
        settings = self._budget.settings
        choosing, verifying = self.find_ground_truths()
        for finalist in chosen:
            self._build(finalist, choosing, work)
        best = fastest(self.built, settings.recall, settings.latency_ms)
        if best is None:
            note("No index built over all rows reaches the targets; searching exactly.")
            best = self._exact_trial(choosing)
        new = self._options[best.spec]
        verified = measure(_searching(self._opened(new), best.spec), best.spec, verifying, best)
        self.tuning = Tuning(
            recall=settings.recall,
            k=settings.k,
            queries=self._queries.origin,
            n_choosing=len(choosing.queries),
            n_verifying=len(verifying.queries),
            verified=verified,
            sampled=self._front,
            seconds=time.monotonic() - self._budget.started,
            machine=machine(),
            libraries=library_versions(),
        )
        losers = {file.name for option in self._options.values() for file in option.files}
        losers -= {file.name for file in (*new.files, *work.old.files)}
        work.remove(losers)
        return replace(new, tuning=self.tuning)

    def _build(self, finalist: Candidate, choosing: GroundTruth, work: Transaction) -> None:
        full, settings = finalist.measured.full, self._budget.settings
        if full is None:
            self.built.append(self._exact_trial(choosing))
            return
        if self.built and (why := self._budget.time_refusal(finalist.build_s)):
            note(f"{full.spec.factory} is not built: {why}.")
            return
        start = time.monotonic()
        new = bare(self._snapshot.manifest, full.spec)
        new = compaction.with_ann(work, self._snapshot, new, memory_bytes=settings.memory_bytes)
        unmeasured_trial = replace(
            finalist.trial,
            n_rows=new.n_rows,
            size_bytes=sum(s.ann.size_bytes for s in new.segments if s.ann),
            predicted_bytes=finalist.size_bytes,
            build_s=time.monotonic() - start,
            predicted_build_s=finalist.build_s,
        )
        ladders = finalist.measured.family.ladders(self._budget.largest)
        search_by = partial(_searching, self._opened(new))
        with progress(f"Searching {full.spec.factory}", None, "settings") as advance:
            trials = climb(search_by, ladders, choosing, settings.recall, unmeasured_trial, advance)
        best = fastest(trials, settings.recall, settings.latency_ms)
        best = best or max(trials, key=lambda t: t.recall)
        self._options[best.spec] = replace(new, settings=replace(new.settings, spec=best.spec))
        self.built.append(best)

    def _exact_trial(self, truth: GroundTruth) -> Trial:
        exact = bare(self._snapshot.manifest, IndexSpec())
        spec = exact.settings.spec
        self._options[spec] = exact
        search = _searching(self._opened(exact), spec)
        return measure(search, spec, truth, unmeasured(spec, exact.n_rows))

    def find_ground_truths(self) -> tuple[GroundTruth, GroundTruth]:
        """Find exact neighbours over all rows, for the choosing and for the verifying queries.

        If the time does not suffice for all of them, only the first queries of both are used.
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

    def _opened(self, manifest: Manifest) -> Snapshot:
        return Snapshot(self._snapshot.folder, manifest, self._snapshot)


def _searching(snapshot: Snapshot, spec: IndexSpec) -> Search:
    """Return a function that searches the snapshot with the parameters of another spec.

    Files that the snapshot has open are not opened again.
    """
    return snapshot.with_spec(spec).search


def bare(manifest: Manifest, spec: IndexSpec) -> Manifest:
    """Return a state with another spec and without FAISS files."""
    bare = manifest.without({s.ann.name for s in manifest.segments if s.ann})
    return replace(bare, settings=replace(bare.settings, spec=spec))
