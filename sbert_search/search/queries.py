"""The queries of a call: texts with operators, vectors, and documents of the index.

docs/start/search.md has the table of the operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.arrays import MAX_NORM, too_long
from sbert_search.errors import QueryError
from sbert_search.index.documents import is_id
from sbert_search.index.norms import unit_vectors
from sbert_search.index.snapshot import Snapshot
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import PAGE_MARK
from sbert_search.search.options import SearchOptions, require_queries

QueryLike: TypeAlias = str | NDArray[np.floating]
"""A query: a text, or a vector of the index's model, (dim,)."""

QueriesLike: TypeAlias = Sequence[str] | NDArray[np.floating]
"""Queries: texts, or vectors of the index's model, (n_queries, dim)."""


class CheckedQueries(NamedTuple):
    """Checked queries."""

    texts: Sequence[str]  # "" for a query that is only a vector
    # The given ones, (n_queries, dim); None: the model computes them.
    vectors: NDArray[np.float32] | None = None


def checked_queries(
    snapshot: Snapshot,
    queries: QueriesLike,
    vectors: NDArray[np.floating] | None,
    options: SearchOptions,
    needs_text: str = "",
    *,
    has_model: bool = False,
) -> tuple[CheckedQueries, SearchOptions]:
    """Check queries; if the mode is ``auto``, choose a mode for them.

    ``auto`` is dense for a query without a text, and lexical for a text without a vector if the
    index has no model. ``needs_text`` names a part of the search that reads the texts of queries in
    every mode, such as "A reranker", for the message. ``has_model``: there is a query model.
    """
    if _are_vectors(queries):
        if vectors is not None:
            raise QueryError("The queries are vectors already; leave the other vectors out.")
        given = query_vectors(snapshot, queries, "The query", with_direction=True)
        mode = "dense" if options.mode == "auto" else options.mode
        if needs_text or mode != "dense":
            raise QueryError(
                f"{needs_text or f'The mode {mode}'} reads the text of a query, and this query is "
                "only a vector. Pass the text, and the vector as `vector` (`vectors` for several)."
            )
        return CheckedQueries([""] * len(given), given), replace(options, mode=mode)
    texts = list(queries) if not isinstance(queries, str) else queries
    require_queries(texts)
    if vectors is None:
        has_model |= snapshot.settings.identity.get("engine") != ModelIdentity.NO_ENGINE
        if options.mode == "auto" and not has_model and snapshot.manifest.lexical is not None:
            return CheckedQueries(texts), replace(options, mode="lexical")
        return CheckedQueries(texts), options.for_index(snapshot)
    if options.mode == "lexical":
        raise QueryError("The mode lexical compares no vectors; leave the vector out.")
    given = query_vectors(snapshot, vectors, "The vector of the query", with_direction=True)
    if len(given) != len(texts):
        raise QueryError(f"{len(given):,} vectors for {len(texts):,} queries; pass one for each.")
    return CheckedQueries(texts, given), options.for_index(snapshot)


def query_vectors(
    snapshot: Snapshot, values: object, shown: str, *, with_direction: bool = False
) -> NDArray[np.float32]:
    """Check vectors that are compared with those of an index; return them as float32 (n, dim).

    ``shown`` is their name in messages, such as "The query". ``with_direction``: refuse a vector of
    zeros if the metric is cosine.
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
    if with_direction and snapshot.settings.metric == "cosine" and not vectors.any(axis=1).all():
        raise QueryError("The query is a vector of zeros, which has no direction for cosine.")
    return vectors


def one_query(
    query: QueryLike, vector: NDArray[np.floating] | None
) -> tuple[QueriesLike, NDArray[np.floating] | None]:
    """Return one query and its vector as the first arguments of `checked_queries`."""
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
    if array.dtype.kind in "US":
        raise QueryError(f"{shown} is a list of texts; pass one text, or use `search_many`.")
    return array


def load_vectors(path: Path) -> NDArray[np.floating]:
    """Read the vectors of queries from an ``.npy`` file: (n_queries, dim), or (dim,) for one."""
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


def _are_vectors(queries: object) -> bool:
    if hasattr(queries, "__array__"):
        return _as_array(queries, "The query").dtype.kind not in "UO"
    first = next(iter(queries), "") if isinstance(queries, Sequence) else ""
    return hasattr(first, "__array__") or isinstance(first, (list, tuple))


# An operator counts only at the start of a word. A phrase ends before a blank or a punctuation
# mark. + and - count only before a phrase, a letter, or a digit that does not begin the query.
_OPERATOR = re.compile(
    r"""(?<!\S)(?P<sign>[+-]?)(?:"(?P<straight>[^"]*)"|“(?P<curly>[^“”]*)”)(?!\w)
      | (?<!\S)(?P<word_sign>[+-])(?P<word>[^\W_]\S*)""",
    re.VERBOSE,
)


class Clause(NamedTuple):
    """A word or phrase that documents must have, or must not have."""

    text: str  # without its operator
    quoted: bool = False  # it must occur exactly as written
    excluded: bool = False  # documents must not have it

    def __str__(self) -> str:
        words = f'"{self.text}"' if self.quoted else self.text
        return f"-{words}" if self.excluded else words if self.quoted else f"+{words}"


class ParsedQuery(NamedTuple):
    """A query without its operators."""

    text: str  # to embed and to score: without excluded words, plus signs and quotes
    clauses: tuple[Clause, ...] = ()  # a document must meet all of them


def parse_query(query: str) -> ParsedQuery:
    """Find the operators in a query. A query of several lines has none: it is plain text."""
    clauses: list[Clause] = []
    kept: list[str] = []
    end = 0
    for match in _OPERATOR.finditer(query) if len(query.splitlines()) == 1 else ():
        clause = _clause(match)
        if clause is not None:
            kept += query[end : match.start()], "" if clause.excluded else clause.text
            clauses.append(clause)
            end = match.end()
    if not clauses:
        return ParsedQuery(query)
    text = " ".join("".join([*kept, query[end:]]).split())
    if not text:
        raise QueryError(
            f"{query!r} has only words to exclude; add words to search for, or put the text in "
            "double quotes to search for it as it is."
        )
    return ParsedQuery(text, tuple(dict.fromkeys(clauses)))


def _clause(match: re.Match[str]) -> Clause | None:
    """Return the clause of a match of `_OPERATOR`; None if it contains no word to look up."""
    if (word := match["word"]) is not None:
        # A query that begins with a sign and a digit, as "-5 degrees", begins with a number.
        is_number = not word[0].isalpha() and not match.string[: match.start()].strip()
        return None if is_number else Clause(word, excluded=match["word_sign"] == "-")
    text = match["straight"] if match["straight"] is not None else match["curly"]
    words = " ".join(text.split())
    if not re.search(r"\w", words):
        return None
    return Clause(words, quoted=True, excluded=match["sign"] == "-")


Example: TypeAlias = str | int | NDArray[np.floating]
"""The id of a document in the index, or a vector of the index's model, (dim,)."""

Examples: TypeAlias = Example | Sequence[Example] | Sequence[float]


def example_query(
    snapshot: Snapshot, like: Examples, unlike: Examples = ()
) -> tuple[NDArray[np.float32], list[str]]:
    """Compute a query vector (dim,) from examples; also return the ids of the documents among them.

    Let p be the mean of the vectors of ``like``, and n the mean of the vectors of ``unlike``. The
    query vector is p + (p - n), or p if ``unlike`` is empty. This is the "average vector" strategy
    of Qdrant's recommendation API. The vector of a document is the mean of the vectors of its
    passages. If the metric is cosine, every vector is scaled to norm 1 first.
    """
    like, unlike = _as_list(like), _as_list(unlike)
    if not like:
        raise QueryError("Name at least one document or vector that the hits shall be like.")
    doc_ids = [str(example) for example in (*like, *unlike) if is_id(example)]
    rows = snapshot.lookup(doc_ids)
    if (rows < 0).any():
        absent = doc_ids[int(np.argmax(rows < 0))]
        shown = f"{snapshot.path} holds no document with the id {absent!r}."
        pages = pages_of_file(snapshot, absent)
        raise QueryError(f"{shown}{pages and f'{pages} Name one or several.'}")
    row_of = dict(zip(doc_ids, rows.tolist(), strict=True))
    positive = _mean(snapshot, like, row_of)
    query = positive + (positive - _mean(snapshot, unlike, row_of)) if unlike else positive
    if not query.any():
        raise QueryError("The examples cancel out: their vector has norm 0.")
    return query.astype(np.float32), doc_ids


def pages_of_file(snapshot: Snapshot, file: str) -> str:
    """Return a sentence with the ids of the pages of a PDF file; "": the index has none."""
    pages = [f"{file}{PAGE_MARK}{number}" for number in range(1, 1000)]
    found = [
        repr(page) for page, row in zip(pages, snapshot.lookup(pages), strict=True) if row >= 0
    ]
    ids = " ... ".join(found[:: max(1, len(found) - 1)])
    return f" Each page of it is a document: {ids}." if found else ""


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
            vector = query_vectors(snapshot, np.asarray(example)[None], "An example")
        vectors.append(unit_vectors(vector) if snapshot.settings.metric == "cosine" else vector)
    mean: NDArray[np.float64] = np.concatenate(vectors).mean(axis=0, dtype=np.float64)
    return mean
