"""Search for one query in segments with FAISS files, in as few Python steps as possible.

While FAISS walks an HNSW graph, it fills the CPU caches with vectors, so the code that runs next
takes twice as long as usual. A short code path keeps the latency low. Results equal those of
`segment_search.offer_approximate` bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense import faiss_file, faiss_runtime
from sbert_search.index.dense.exact import PAIR_ELEMENTS, exact_scores
from sbert_search.index.dense.faiss_runtime import FaissIndex, FaissParameters
from sbert_search.index.dense.query_plan import plan
from sbert_search.index.storage.manifest import StoreSettings
from sbert_search.index.storage.segments import Segment


@dataclass(slots=True)
class _Searched:
    """A segment (a part of the index) with its FAISS index.

    Attributes:
        segment: The segment.
        index: Its FAISS index.
        plans: For each k of an earlier search, the number of candidates and FAISS's parameters.
    """

    segment: Segment
    index: FaissIndex
    plans: dict[int, tuple[int, FaissParameters]] = field(default_factory=dict)


class SingleQuerySearch:
    """Search of segments whose rows are all live (not deleted).

    FAISS searches every segment on the CPU.
    """

    __slots__ = ("_parts", "_settings")

    def __init__(self, parts: Sequence[_Searched], settings: StoreSettings) -> None:
        self._parts, self._settings = parts, settings

    @classmethod
    def of(
        cls,
        segments: Sequence[Segment],
        anns: Sequence[faiss_file.FaissFile | None],
        settings: StoreSettings,
    ) -> SingleQuerySearch | None:
        """Return a search by the FAISS files of segments; the caller checks that all rows are live.

        None if there is no segment, if a segment has no readable FAISS file, or if a GPU searches a
        segment.
        """
        parts = []
        for segment, ann in zip(segments, anns, strict=True):
            if ann is None or ann.index is None or ann.on_gpu is not None:
                return None
            parts.append(_Searched(segment, ann.index))
        return cls(parts, settings) if parts else None

    def nearest(
        self, query: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Find the best rows of one query.

        Args:
            query: float32 (1, dim); the caller has normalised it if the metric is cosine.
            k: Number of rows.

        Returns:
            Scores float32 (1, k), best first, and row numbers in the index, int64 (1, k). None if a
            segment has fewer than k rows, or if FAISS finds fewer candidates than it is asked for.

        Raises:
            IndexStoreError: This process was forked after FAISS was loaded.
        """
        faiss_runtime.require_not_forked()
        plans = [part.plans.get(k) or self._plan(part, k) for part in self._parts]
        if any(n_candidates < k for n_candidates, _ in plans):
            return None
        rows, places = [], []
        for part, (n_candidates, parameters) in zip(self._parts, plans, strict=True):
            at = part.index.search(query, n_candidates, params=parameters)[1][0]
            # at.min() would call the same `reduce` through two Python functions.
            if np.minimum.reduce(at) < 0:
                return None
            rows.append(part.segment.rows.take(at))
            places.append(at)
        row = rows[0] if len(rows) == 1 else np.concatenate(rows)
        score = self._scores(query, places)
        best = np.lexsort((row, -score))[:k]
        return score.take(best)[None], row.take(best)[None]

    def _scores(
        self, query: NDArray[np.float32], places: Sequence[NDArray[np.int64]]
    ) -> NDArray[np.float32]:
        """Score the rows at the positions ``places`` of each segment, float32 (n,)."""
        metric, found = self._settings.metric, [part.segment.vectors for part in self._parts]
        if len(places) > 1 and sum(map(len, places)) * query.shape[1] <= PAIR_ELEMENTS:
            # For few rows, one call for all segments is faster than one call for each segment.
            taken = [vectors.take(at, axis=0) for vectors, at in zip(found, places, strict=True)]
            found = [np.concatenate(taken)]
            places = [np.arange(len(found[0]))]
        # `exact_scores` does not read its third argument, query indices, if there is one query.
        scores = [
            exact_scores(query, vectors, at, at, metric)
            for vectors, at in zip(found, places, strict=True)
        ]
        return scores[0] if len(scores) == 1 else np.concatenate(scores)

    def _plan(self, part: _Searched, k: int) -> tuple[int, FaissParameters]:
        """Plan the search of a segment for k rows, and store the plan in ``part.plans``."""
        n, spec = part.segment.n_rows, self._settings.spec
        planned = plan(spec, n, n, n_live=n, k=k, n_queries=1, takes_bitmap=False)
        parameters = faiss_file.parameters(part.index, planned.spec, planned.n_candidates)
        part.plans[k] = planned.n_candidates, parameters
        return part.plans[k]
