"""Search of one query in an index of one segment with a FAISS file, in as few steps as possible.

While FAISS walks a graph, it fills the processor's caches with vectors, so the code that runs next
takes twice as long as usual. A short code path keeps the latency low. Results equal those of
`segment_search.offer_approximate` bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense import faiss_file, faiss_runtime
from sbert_search.index.dense.exact import exact_scores
from sbert_search.index.dense.faiss_runtime import FaissIndex, FaissParameters
from sbert_search.index.dense.query_plan import plan
from sbert_search.index.storage.manifest import StoreSettings
from sbert_search.index.storage.segments import Segment


@dataclass(slots=True)
class SingleQuerySearch:
    """Search of one segment whose rows are all live.

    Attributes:
        segment: The segment.
        index: Its FAISS index, on the CPU.
        settings: Settings of the index.
    """

    segment: Segment
    index: FaissIndex
    settings: StoreSettings
    _plans: dict[int, tuple[int, FaissParameters]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, segment: Segment, ann: faiss_file.FaissFile | None, settings: StoreSettings
    ) -> SingleQuerySearch | None:
        """Return a search by a segment's FAISS file; None without a file or if a GPU searches."""
        if ann is None or ann.index is None or ann.on_gpu is not None:
            return None
        return cls(segment, ann.index, settings)

    def nearest(
        self, query: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Find the best rows of one query, (1, dim), normalised for cosine.

        Returns:
            Scores float32 (1, k), best first, and rows int64 (1, k). None if the segment has fewer
            than k rows, or if FAISS finds fewer candidates than the plan asks for, even if it finds
            k of them.

        Raises:
            IndexStoreError: As for `faiss_runtime.require_not_forked`.
        """
        faiss_runtime.require_not_forked()
        n_candidates, parameters = self._plans.get(k) or self._plan(k)
        at = self.index.search(query, n_candidates, params=parameters)[1][0]
        if n_candidates < k or np.minimum.reduce(at) < 0:  # one call fewer than at.min()
            return None
        rows = self.segment.rows.take(at)
        scores = exact_scores(query, self.segment.vectors, at, at, self.settings.metric)
        best = np.lexsort((rows, -scores))[:k]
        return scores.take(best)[None], rows.take(best)[None]

    def _plan(self, k: int) -> tuple[int, FaissParameters]:
        """Plan a search for k rows, and remember the plan."""
        n, spec = self.segment.n_rows, self.settings.spec
        planned = plan(spec, n, n, n_live=n, k=k, n_queries=1, takes_bitmap=False)
        parameters = faiss_file.parameters(self.index, planned.spec, planned.n_candidates)
        self._plans[k] = planned.n_candidates, parameters
        return self._plans[k]
