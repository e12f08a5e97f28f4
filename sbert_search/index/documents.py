"""Reading documents of an index without a query: by id, in pages, in order or at random.

Later passages get higher rows, so the order of rows is the order in which documents were added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.config import is_integer, names_of, unknown_name
from sbert_search.errors import QueryError
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.records import Document, Where

DocIds: TypeAlias = str | int | Iterable[str | int]
"""One document id or several. The integer 12 means the id "12"."""

_BLOCK = 256  # number of documents read at a time


@dataclass(frozen=True, slots=True)
class Page:
    """A page of documents, and the argument with which the next page is read.

    Attributes:
        documents: The documents, in the order in which they were added.
        after: Row of the first passage of the last document. It is the argument ``after`` of the
            next call of `Index.scroll`. None: there are no more documents.

    Example:
        >>> Index.open("my.index").scroll(2).documents[1].doc_id
        'bread'
    """

    documents: list[Document]
    after: int | None


def is_id(value: object) -> bool:
    """Whether a value can be the id of a document: a text or an integer."""
    return isinstance(value, str) or is_integer(value)


def id_text(value: object) -> str:
    """Return an id as the text that the index holds; refuse all but texts and integers."""
    if not is_id(value):
        raise QueryError(f"{value!r} is not an id; ids are texts or integers.")
    return str(value)


def id_texts(ids: DocIds) -> list[str]:
    """Return one id or several ids as a list of the texts that the index holds."""
    one = (str, bytes, bytearray, memoryview)  # bytes are refused; their elements are not ids
    if isinstance(ids, one) or not isinstance(ids, Iterable):
        return [id_text(ids)]
    return [id_text(doc_id) for doc_id in ids]


def get_document(snapshot: Snapshot, doc_id: str) -> Document | None:
    """Read a document by its id; None if the index does not hold it."""
    row = int(snapshot.lookup([doc_id])[0])
    return None if row < 0 else snapshot.fetch([row])[0].document


def iter_documents(
    snapshot: Snapshot,
    where: Where | None,
    sort: str | Sequence[str] | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> Iterator[Document]:
    """Read the live documents that match a filter (None: all); see `Index.documents`."""
    for name, n in (("offset", offset), ("limit", 0 if limit is None else limit)):
        if not (is_integer(n) and n >= 0):
            raise QueryError(f"{name} is {n!r}; it must be an integer of at least 0.")
    if where is None and not sort and not offset and limit is None:
        return snapshot.iter_documents()
    rows = first_rows(snapshot, where)
    rows = rows[sorted_by(snapshot, sort, rows)] if sort else rows
    return _read(snapshot, rows[offset : None if limit is None else offset + limit])


OWN_COLUMNS: Mapping[str, ColumnType] = {"doc_id": "string", "title": "string"}
"""Fields of every document that a filter or ``sort`` can name beside the metadata columns."""


def sorted_by(
    snapshot: Snapshot, sort: str | Sequence[str], docs: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the order (n,) of documents by columns or, with ``-`` before one, descending.

    Documents without a value are last. The next column orders documents with equal values; those
    with equal values in all columns stay in their order.
    """
    order = np.arange(len(docs))
    for name in reversed(names_of(sort)):
        codes = _codes(snapshot, name.removeprefix("-"), docs[order])
        order = order[np.lexsort((-codes if name[0] == "-" else codes, codes < 0))]
    return order


def _codes(snapshot: Snapshot, column: str, docs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of each document by a column, as `Snapshot.codes_of` does."""
    kind = {**OWN_COLUMNS, **snapshot.columns}.get(column)
    if kind is None:
        unknown = unknown_name(column, column, {*snapshot.columns, *OWN_COLUMNS}, "column")
        raise QueryError(f"{unknown} Write COLUMN or, for the descending order, -COLUMN.")
    if kind.startswith("list["):
        raise QueryError(
            f"sort is {column!r}, a column whose values are lists ({kind}); name one with single "
            "values."
        )
    if column not in snapshot.columns:
        return _codes_of_own(snapshot, column, docs)
    if kind == "string":
        from sbert_search.text.columns import some_texts, warn_of_texts  # other searches need less

        warn_of_texts(column, some_texts(snapshot.distinct_values(column).values), "sorted")
    return snapshot.codes_of(column, docs)


def _codes_of_own(snapshot: Snapshot, name: str, docs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of each document by a field of its own, as `Snapshot.codes_of` does."""
    values = np.empty(len(docs), object)
    for segment, here, at in snapshot.located(docs):
        values[here] = segment.table([name]).column(0).take(pa.array(at)).to_pylist()
    codes, known = np.full(len(docs), -1, np.int64), values.astype(bool)  # "": no title
    codes[known] = np.unique(values[known], return_inverse=True)[1]
    return codes


def read_page(snapshot: Snapshot, n: int, after: int | None, where: Where | None) -> Page:
    """Read at most ``n`` documents whose rows are above ``after``; None: the first documents."""
    _require_positive(n)
    if not (after is None or is_integer(after)):
        raise QueryError(f"after is {after!r}; pass the integer `after` of the previous page.")
    rows = first_rows(snapshot, where)
    start = 0 if after is None else int(np.searchsorted(rows, after, "right"))
    page = rows[start : start + n]
    more = start + n < len(rows)
    return Page(list(_read(snapshot, page)), int(page[-1]) if more else None)


def sample_documents(snapshot: Snapshot, n: int, seed: int, where: Where | None) -> list[Document]:
    """Draw ``n`` different documents at random; if there are fewer, return all in random order."""
    _require_positive(n)
    if not (is_integer(seed) and seed >= 0):
        raise QueryError(f"seed is {seed!r}; it must be an integer of at least 0.")
    rows = first_rows(snapshot, where)
    drawn = np.random.default_rng(seed).permutation(len(rows))[:n]
    return list(_read(snapshot, rows[drawn]))


def first_rows(snapshot: Snapshot, where: Where | None = None) -> NDArray[np.int64]:
    """Return the rows of the first passages of matching live documents, (n_docs,), ascending."""
    parts = [np.empty(0, np.int64)]
    mask = None if where is None else snapshot.filter_mask(where)
    for i, segment in enumerate(snapshot.segments):
        live = snapshot.live(i) if mask is None else mask.parts[i]
        is_first = segment.chunks == 0
        parts.append(segment.rows[is_first if live is None else is_first & live])
    return np.sort(np.concatenate(parts))


def _read(snapshot: Snapshot, rows: NDArray[np.int64]) -> Iterator[Document]:
    for start in range(0, len(rows), _BLOCK):
        for passage in snapshot.fetch(rows[start : start + _BLOCK]):
            yield passage.document


def _require_positive(n: int) -> None:
    if not (is_integer(n) and n >= 1):
        raise QueryError(f"n is {n!r}; it must be an integer of at least 1.")
