"""The queries of a call: texts, vectors, or texts whose vectors the user gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import MAX_NORM, too_long
from sbert_search.errors import QueryError
from sbert_search.index.snapshot import Snapshot
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.search.options import SearchOptions, require_queries

QueryLike: TypeAlias = str | NDArray[np.floating]
"""A query: a text, or a vector of the index's model, (dim,)."""

QueriesLike: TypeAlias = Sequence[str] | NDArray[np.floating]
"""Queries: texts, or vectors of the index's model, (n_queries, dim)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Checked queries.

    Attributes:
        texts: The text of each query, "" for a query that is only a vector.
        vectors: The given vector of each query, float32 (n_queries, dim). None: no vectors are
            given, so the model computes them.
    """

    texts: Sequence[str]
    vectors: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, start: int, stop: int) -> Asked:
        """Return the queries from ``start`` up to ``stop`` (not included)."""
        vectors = None if self.vectors is None else self.vectors[start:stop]
        return Asked(self.texts[start:stop], vectors)


def ask(
    snapshot: Snapshot,
    queries: QueriesLike,
    vectors: NDArray[np.floating] | None,
    options: SearchOptions,
    needs_text: str = "",
) -> tuple[Asked, SearchOptions]:
    """Check queries; if the mode is ``auto``, choose a mode for them.

    ``auto`` is dense for a query without a text, and lexical for a text without a vector if the
    index has no model.

    Args:
        snapshot: State of the index to search.
        queries: Texts or vectors.
        vectors: Vectors of the texts, (n_queries, dim); None: the model computes them.
        options: The options of the search.
        needs_text: A part of the search that reads the texts of queries in every mode, such as "A
            reranker", for the message; "": there is no such part.

    Raises:
        QueryError: A query is blank, is neither a text nor a vector of the index, or is a vector of
            zeros and the metric is cosine; the numbers of texts and vectors differ; a vector is
            given that the search does not use; or a text is missing that the search reads.
    """
    if _are_vectors(queries):
        if vectors is not None:
            raise QueryError("The queries are vectors already; leave the other vectors out.")
        given = _with_direction(snapshot, query_vectors(snapshot, queries, "The query"))
        mode = "dense" if options.mode == "auto" else options.mode
        if needs_text or mode != "dense":
            raise QueryError(
                f"{needs_text or f'The mode {mode}'} reads the text of a query, and this query is "
                "only a vector. Pass the text, and the vector as `vector` (`vectors` for several)."
            )
        return Asked([""] * len(given), given), replace(options, mode=mode)
    texts = list(queries) if not isinstance(queries, str) else queries
    require_queries(texts)
    if vectors is None:
        return Asked(texts), _for_texts(snapshot, options)
    if options.mode == "lexical":
        raise QueryError("The mode lexical compares no vectors; leave the vector out.")
    given = query_vectors(snapshot, vectors, "The vector of the query")
    given = _with_direction(snapshot, given)
    if len(given) != len(texts):
        raise QueryError(f"{len(given):,} vectors for {len(texts):,} queries; pass one for each.")
    return Asked(texts, given), options.for_index(snapshot)


def query_vectors(snapshot: Snapshot, values: object, shown: str) -> NDArray[np.float32]:
    """Check vectors that are compared with those of an index.

    Args:
        snapshot: State of the index.
        values: Vectors (n, dim).
        shown: Name of the vectors in messages, such as "The query".

    Returns:
        Float32 (n, dim).

    Raises:
        QueryError: The vectors are no arrays of numbers, have another shape or dimension than
            those of the index, have a value that is not finite, or, if the metric is not cosine,
            have a norm above `MAX_NORM`.
    """
    try:
        with np.errstate(over="ignore"):
            vectors = np.ascontiguousarray(values, dtype=np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise QueryError(f"{shown} is not a vector: {error}.") from error
    dim = snapshot.settings.dim
    if vectors.ndim == 1:
        raise QueryError(
            f"{shown} has the shape {vectors.shape}; several vectors have (n_queries, {dim})."
        )
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise QueryError(
            f"{shown} has the shape {vectors.shape[1:]}; a vector of this index has ({dim},)."
        )
    if not np.isfinite(vectors).all():
        raise QueryError(f"{shown} has a vector with values that are not finite.")
    if snapshot.settings.metric != "cosine" and too_long(vectors).any():
        raise QueryError(f"{shown} has a vector with a norm above {MAX_NORM:g}.")
    return vectors


def one_query(
    query: QueryLike, vector: NDArray[np.floating] | None
) -> tuple[QueriesLike, NDArray[np.floating] | None]:
    """Return one query and its vector as the arguments ``queries`` and ``vectors`` of `ask`."""
    is_vector = hasattr(query, "__array__") or isinstance(query, (list, tuple))
    array = _as_array(query, "The query")[None] if is_vector else None
    queries = [query] if array is None or array.dtype.kind not in "fiu" else array
    given = None if vector is None else _as_array(vector, "The vector of the query")[None]
    return cast("QueriesLike", queries), given


def _as_array(values: object, shown: str) -> NDArray[np.floating]:
    """Return values as an array, whose type is not checked."""
    try:
        array: NDArray[np.floating] = np.asarray(values)
    # Lists of different lengths; tensors on a GPU, of bfloat16, or that require a gradient.
    except (TypeError, ValueError, RuntimeError) as error:
        raise QueryError(f"{shown} is not a vector: {error}.") from error
    return array


def load_vectors(path: Path) -> NDArray[np.floating]:
    """Read the vectors of queries from an ``.npy`` file: (n_queries, dim), or (dim,) for one.

    Raises:
        QueryError: The file cannot be read, or holds an array of another kind or shape.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise QueryError(f"{path}: cannot be read as an .npy file: {error}.") from error
    if not isinstance(array, np.ndarray):
        raise QueryError(f"{path}: an .npz archive; save the vectors with numpy.save.")
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiu":
        raise QueryError(
            f"{path}: holds {array.dtype} of the shape {array.shape}; save numbers of the shape "
            "(n_queries, dim), or (dim,) for one query."
        )
    vectors: NDArray[np.floating] = array[None] if array.ndim == 1 else array
    return vectors


def _with_direction(snapshot: Snapshot, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    if snapshot.settings.metric == "cosine" and not vectors.any(axis=1).all():
        raise QueryError("The query is a vector of zeros, which has no direction for cosine.")
    return vectors


def _are_vectors(queries: object) -> bool:
    if hasattr(queries, "__array__"):
        return _as_array(queries, "The query").dtype.kind not in "UO"
    first = next(iter(queries), "") if isinstance(queries, Sequence) else ""
    return hasattr(first, "__array__") or isinstance(first, (list, tuple))


def _for_texts(snapshot: Snapshot, options: SearchOptions) -> SearchOptions:
    identity, lexical = snapshot.settings.identity, snapshot.settings.lexical
    without_model = identity.get("engine") == ModelIdentity.NO_ENGINE
    if options.mode == "auto" and without_model and lexical is not None:
        return replace(options, mode="lexical")
    return options.for_index(snapshot)
