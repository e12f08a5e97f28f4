"""The ten best passages of many queries, by the exact search of an index, ties aside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.index import Index

N_QUERIES = 1000
Passage = tuple[str, int]
Best = list[tuple[Passage, float]]
"""The best passages of a query with their scores."""


def vectors_of(index: Index, n: int) -> NDArray[np.float32]:
    """Draw vectors of queries; no two passages have the same score for one of them."""
    draw = np.random.default_rng(7)
    return draw.normal(size=(n, index.state.settings.dim)).astype(np.float32)


def best_rows(index: Index, queries: NDArray[np.float32], where: str | None = None) -> list[Best]:
    """Return the best 30 passages of each query with their scores."""
    state = index.state
    mask = None if where is None else state.filter_mask(where)
    scores, rows = state.search(queries, 30, mask, exact=True)
    live = state.live_rows()
    named = {
        row: (passage.document.doc_id, passage.chunk)
        for row, passage in zip(live.tolist(), state.fetch(live), strict=True)
    }
    return [
        [(named[row], score) for row, score in zip(*each, strict=True) if row >= 0]
        for each in zip(rows.tolist(), scores.tolist(), strict=True)
    ]


def require_same(found: Sequence[Passage], best: Best) -> None:
    """Check that ten passages have the scores of the ten best: equal ones may change places."""
    scores = dict(best)
    assert len(found) == len(set(found)) == min(10, len(best))
    assert np.allclose([scores[each] for each in found], [s for _, s in best[:10]], atol=2e-5)
