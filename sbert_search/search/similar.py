"""Search by example: a query vector from documents of the index and from vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import QueryError
from sbert_search.index.documents import is_id
from sbert_search.index.norms import normalised
from sbert_search.index.snapshot import Snapshot
from sbert_search.search.queries import query_vectors

Example: TypeAlias = str | int | NDArray[np.floating]
"""The id of a document in the index, or a vector of the index's model, (dim,)."""

Examples: TypeAlias = Example | Sequence[Example] | Sequence[float]


def example_query(
    snapshot: Snapshot, like: Examples, unlike: Examples = ()
) -> tuple[NDArray[np.float32], list[str]]:
    """Compute a query vector from examples.

    Let p be the mean of the vectors of ``like``, and n the mean of the vectors of ``unlike``. The
    query vector is p + (p - n), or p if ``unlike`` is empty. This is the "average vector" strategy
    of Qdrant's recommendation API. The vector of a document is the mean of the vectors of its
    passages. If the metric is cosine, every vector is scaled to norm 1 first.

    Returns:
        The query vector, float32 (dim,), and the ids of the documents among the examples.

    Raises:
        QueryError: There is no example, an id is not in the index, a vector has another shape or a
            value that is not finite, or the examples cancel out.
    """
    like, unlike = _as_list(like), _as_list(unlike)
    if not like:
        raise QueryError("Name at least one document or vector that the hits shall be like.")
    doc_ids = [str(example) for example in (*like, *unlike) if is_id(example)]
    rows = snapshot.lookup(doc_ids)
    if (rows < 0).any():
        absent = doc_ids[int(np.argmax(rows < 0))]
        raise QueryError(f"{snapshot.path} holds no document with the id {absent!r}.")
    row_of = dict(zip(doc_ids, rows.tolist(), strict=True))
    positive = _mean(snapshot, like, row_of)
    query = positive + (positive - _mean(snapshot, unlike, row_of)) if unlike else positive
    if not query.any():
        raise QueryError("The examples cancel out: their vector has norm 0.")
    return query.astype(np.float32), doc_ids


def _as_list(examples: Examples) -> list[Example]:
    """Return one example or several as a list; a list with a float is one vector."""
    if isinstance(examples, np.ndarray) and examples.ndim:
        return [examples] if examples.ndim == 1 else list(examples)
    is_scalar = isinstance(examples, np.ndarray) or not isinstance(examples, Iterable)
    if isinstance(examples, (str, int, Integral)):
        return [examples]
    if is_scalar or isinstance(examples, (bytes, bytearray, memoryview)):
        raise QueryError(f"{examples!r} is not an id; ids are texts or integers.")
    listed = list(examples)
    if any(isinstance(value, float | np.floating) for value in listed):
        return [np.asarray(listed)]
    return [value for value in listed if not isinstance(value, float)]


def _mean(
    snapshot: Snapshot, examples: Iterable[Example], row_of: dict[str, int]
) -> NDArray[np.float64]:
    vectors = []
    for example in examples:
        if is_id(example):
            rows = snapshot.rows_of(np.array([row_of[str(example)]]))
            vector = snapshot.vectors(rows).mean(axis=0, keepdims=True)
        else:
            vector = _vector(snapshot, example)
        vectors.append(normalised(vector) if snapshot.settings.metric == "cosine" else vector)
    mean: NDArray[np.float64] = np.concatenate(vectors).mean(axis=0, dtype=np.float64)
    return mean


def _vector(snapshot: Snapshot, values: object) -> NDArray[np.float32]:
    """Check a vector and return it as a matrix of one row."""
    return query_vectors(snapshot, np.asarray(values)[None], "An example")
