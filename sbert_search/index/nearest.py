"""The nearest rows of one segment: by FAISS where that pays, else by an exact scan."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.index import ann, gpu
from sbert_search.index.manifest import StoreSettings
from sbert_search.index.scan import TopK, Vectors, exact_scores, scan
from sbert_search.index.segments import Segment
from sbert_search.index.selection import Selection, plan


class Rows(Protocol):
    """Vectors that are searched together, such as a segment."""

    @property
    def vectors(self) -> Vectors:
        """(n_rows, dim)."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row number of each vector, rising."""

    @property
    def n_rows(self) -> int:
        """How many."""

    @property
    def max_norm(self) -> float:
        """Largest Euclidean length of a vector."""


def offer_nearest(
    top: TopK,
    queries: NDArray[np.float32],
    segment: Segment,
    found: ann.Ann | None,
    wanted: Selection | None,
    settings: StoreSettings,
) -> None:
    """Offer the best rows of a segment to `top`.

    Args:
        top: Best rows so far; also says what k is.
        queries: float32 (n_queries, dim), normalised for cosine.
        segment: Where to look.
        found: Its FAISS file, if it has one.
        wanted: Which positions take part; None means all.
        settings: Of the index.
    """
    if found is None or found.index is None:
        offer_scanned(top, queries, segment, wanted, settings)
    else:
        offer_found(top, queries, segment, found.index, wanted, settings, found.on_gpu)


def offer_found(
    top: TopK,
    queries: NDArray[np.float32],
    part: Rows,
    index: Any,
    wanted: Selection | None,
    settings: StoreSettings,
    on_gpu: gpu.GpuIndex | None = None,
) -> None:
    """Offer the rows that a FAISS index finds, scored by their stored vectors.

    Arguments as for `offer_nearest`; ``index`` holds the vectors of ``part``, ``on_gpu`` is its
    copy on a device, which scores all vectors for what FAISS does not know there. Where few rows
    are wanted they are scanned instead, and so is for any query what FAISS cannot fill: there are
    k rows whenever k are wanted.
    """
    n_wanted = part.n_rows if wanted is None else wanted.n_wanted
    how = plan(
        settings.spec,
        part.n_rows,
        n_wanted,
        k=top.k,
        n_queries=len(queries),
        takes_bitmap=wanted is None or ann.takes_bitmap(index),
    )
    if how.route == "scan":
        offer_scanned(top, queries, part, wanted, settings)
        return
    if on_gpu is None:
        at = ann.search(index, how, queries, wanted)
    elif gpu.knows(how):
        at = on_gpu.search(how, queries, wanted)
    else:
        euclidean = settings.metric == "euclidean"
        at = gpu.exact_candidates(
            queries, part.vectors, how.n_candidates, wanted, euclidean=euclidean
        )
    short = (at >= 0).sum(axis=1) < min(top.k, n_wanted)
    query, column = np.nonzero((at >= 0) & ~short[:, None])
    at = at[query, column]
    scores = exact_scores(queries, part.vectors, query, at, settings.metric)
    top.offer(query, part.rows[at], scores)
    if short.any():
        rest = top.take(short)
        offer_scanned(rest, queries[short], part, wanted, settings)
        top.scores[short], top.rows[short] = rest.scores, rest.rows


def offer_scanned(
    top: TopK,
    queries: NDArray[np.float32],
    part: Rows,
    wanted: Selection | None,
    settings: StoreSettings,
) -> None:
    """Offer the best rows by an exact scan; arguments as for `offer_nearest`."""
    scan(
        queries,
        part.vectors,
        top,
        part.rows,
        metric=settings.metric,
        max_norm=part.max_norm,
        wanted=None if wanted is None else wanted.marks,
    )
