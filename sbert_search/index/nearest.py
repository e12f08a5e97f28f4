"""The nearest rows of one segment: by FAISS where that pays, else by an exact scan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sbert_search.index import ann
from sbert_search.index.manifest import StoreSettings
from sbert_search.index.scan import TopK, exact_scores, scan
from sbert_search.index.segments import Segment
from sbert_search.index.spec import MIN_ANN_ROWS


def offer_nearest(
    top: TopK,
    queries: NDArray[np.float32],
    segment: Segment,
    found: ann.Ann | None,
    wanted: NDArray[np.bool_] | None,
    settings: StoreSettings,
) -> None:
    """Offer the best rows of a segment to `top`.

    Fewer than `MIN_ANN_ROWS` wanted rows are scanned, and so is all that FAISS cannot fill: a
    query gets k rows whenever there are k.

    Args:
        top: Best rows so far; also says what k is.
        queries: float32 (n_queries, dim), normalised for cosine.
        segment: Where to look.
        found: Its FAISS file, if it has one.
        wanted: Which positions take part, bool (n_rows,); None means all.
        settings: Of the index.
    """
    n_wanted = segment.n_rows if wanted is None else int(wanted.sum())
    index = found.index if found and n_wanted >= MIN_ANN_ROWS else None
    if index is None:
        _scan(top, queries, segment, wanted, settings)
        return
    at = ann.search(index, settings.spec, queries, top.k, wanted)
    short = (at >= 0).sum(axis=1) < min(top.k, n_wanted)
    query, column = np.nonzero((at >= 0) & ~short[:, None])
    at = at[query, column]
    scores = exact_scores(queries, segment.vectors, query, at, settings.metric)
    top.offer(query, segment.rows[at], scores)
    if short.any():
        rest = top.take(short)
        _scan(rest, queries[short], segment, wanted, settings)
        top.scores[short], top.rows[short] = rest.scores, rest.rows


def _scan(
    top: TopK,
    queries: NDArray[np.float32],
    segment: Segment,
    wanted: NDArray[np.bool_] | None,
    settings: StoreSettings,
) -> None:
    scan(
        queries,
        segment.vectors,
        top,
        segment.rows,
        metric=settings.metric,
        max_norm=segment.record.max_norm,
        wanted=wanted,
    )
