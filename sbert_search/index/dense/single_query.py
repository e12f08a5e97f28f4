"""One query of an index that is one FAISS file and nothing beside it, in as few steps as can be.

A walk over a graph leaves the processor's caches full of vectors, so whatever runs after it waits
for memory at each step: twice as long as when it is warm. Such a query is as fast as its code is
short; results are those of `offer_approximate`, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.dense import faiss_file, faiss_runtime
from sbert_search.index.dense.exact import exact_scores
from sbert_search.index.dense.query_plan import plan
from sbert_search.index.storage.manifest import StoreSettings
from sbert_search.index.storage.segments import Segment


@dataclass(slots=True)
class SingleQuerySearch:
    """Search of one segment, all of whose rows take part.

    Attributes:
        segment: Where to look.
        index: Its FAISS index, on the CPU.
        settings: Of the store.
    """

    segment: Segment
    index: Any
    settings: StoreSettings
    _ways: dict[int, tuple[int, Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, segment: Segment, found: faiss_file.FaissFile | None, settings: StoreSettings
    ) -> SingleQuerySearch | None:
        """Return a search by a segment's FAISS file; None where there is none to be searched."""
        if found is None or found.index is None or found.on_gpu is not None:
            return None
        return cls(segment, found.index, settings)

    def nearest(
        self, query: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Find the best rows of one query, (1, dim), normalised for cosine.

        Returns:
            Scores float32 (1, k), best first, and rows int64 (1, k); None where FAISS has fewer.

        Raises:
            IndexStoreError: As for `faiss_runtime.require_own`.
        """
        faiss_runtime.require_own()
        n_candidates, parameters = self._ways.get(k) or self._way(k)
        at = self.index.search(query, n_candidates, params=parameters)[1][0]
        if n_candidates < k or np.minimum.reduce(at) < 0:
            return None
        rows = self.segment.rows.take(at)
        scores = exact_scores(query, self.segment.vectors, at, at, self.settings.metric)
        best = np.lexsort((rows, -scores))[:k]
        return scores.take(best)[None], rows.take(best)[None]

    def _way(self, k: int) -> tuple[int, Any]:
        """Plan a search for k rows, once."""
        n, spec = self.segment.n_rows, self.settings.spec
        how = plan(spec, n, n, n_live=n, k=k, n_queries=1, takes_bitmap=False)
        parameters = faiss_file.parameters(self.index, how.spec, how.n_candidates)
        self._ways[k] = how.n_candidates, parameters
        return self._ways[k]
