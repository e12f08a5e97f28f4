"""Choose the documents of a map, and read one vector for each of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.norms import normalised
from sbert_search.index.snapshot import Snapshot

BLOCK = 4096  # documents whose passages are averaged at a time


def choose_documents(snapshot: Snapshot, most: int, seed: int) -> NDArray[np.int64]:
    """Return the rows of the first passages of live documents, ascending, int64 (n,).

    Args:
        snapshot: State of the index.
        most: Maximum number of documents. If the index has more, a random sample of this size is
            drawn, without repetition.
        seed: Seed of the sample.
    """
    parts = [np.empty(0, np.int64)]
    for i, segment in enumerate(snapshot.segments):
        live, rows = snapshot.live_docs(i), segment.rows[segment.firsts]
        parts.append(rows if live is None else rows[live])
    docs = np.sort(np.concatenate(parts))
    if len(docs) <= most:
        return docs
    return np.sort(np.random.default_rng(seed).choice(docs, most, replace=False))


def document_vectors(snapshot: Snapshot, docs: NDArray[np.int64]) -> NDArray[np.float32]:
    """Read one vector for each document: the mean of the vectors of its passages.

    With the metric cosine, means are scaled to norm 1, as are all vectors of such an index.

    Args:
        snapshot: State of the index.
        docs: Rows of the documents' first passages, ascending, int64 (n,).

    Returns:
        float32 (n, dim).
    """
    vectors = np.empty((len(docs), snapshot.settings.dim), np.float32)
    for start in range(0, len(docs), BLOCK):
        block = docs[start : start + BLOCK]
        vectors[start : start + len(block)] = _means(snapshot, block)
    return vectors


def _means(snapshot: Snapshot, docs: NDArray[np.int64]) -> NDArray[np.float32]:
    if snapshot.n_rows == snapshot.n_docs:
        return snapshot.vectors(docs)
    rows = snapshot.rows_of(docs)  # the rows of a document are consecutive
    starts = np.searchsorted(rows, docs)
    counts = np.diff(starts, append=len(rows))
    means = np.add.reduceat(snapshot.vectors(rows).astype(np.float64), starts, axis=0)
    means /= counts[:, None]
    narrow: NDArray[np.float32] = means.astype(np.float32)
    return normalised(narrow) if snapshot.settings.metric == "cosine" else narrow
