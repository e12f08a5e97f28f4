"""Haystack's documents as records of an index, and back; its filters as conditions.

A field is ``id`` or the name of metadata, with or without ``meta.`` before it; ``meta.a.b`` is the
value ``b`` of the mapping ``a``. ``==`` and ``in`` with ``None`` match documents without a value.
Texts can be ordered only if they are ISO dates, whose times the index stores in further columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

import numpy as np
from haystack.dataclasses import ByteStream, Document, SparseEmbedding
from haystack.errors import FilterError
from numpy.typing import NDArray

from sbert_search.errors import CorpusError
from sbert_search.index.filters.structured import all_of, any_of, none_of, plain_value
from sbert_search.integrations.records import Conditions, Record

TIMES = "_time."  # prefix of a field's name: the column with the times of its ISO dates
_OWN = ("content", "blob", "score", "embedding", "sparse_embedding")
_ORDERS = ("<", "<=", ">", ">=")


def where_of(filters: Mapping[str, object] | None, columns: Conditions) -> str | None:
    """Write a filter as a condition; None: no filter."""
    return _condition(filters, columns) if filters else None


def time_of(value: object) -> datetime | None:
    """Return the time of an ISO date, in UTC; None for other values.

    The date must name a day. Without a time zone, it is read as UTC.
    """
    if isinstance(value, str):
        if len(value) < 10 or value[4] != "-" or value[7] != "-":
            return None
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    try:
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:  # in UTC, it is before the year 1 or after the year 9999
        return None


def _condition(node: object, columns: Conditions) -> str:
    if not isinstance(node, Mapping):
        raise FilterError(f"A filter is {node!r}; it must be a mapping.")
    needed = ("field", "operator", "value") if "field" in node else ("operator", "conditions")
    for key in needed:
        if key not in node:
            raise FilterError(f"'{key}' key missing in {dict(node)}")
    if "field" in node:
        return _comparison(str(node["field"]), node["operator"], node["value"], columns)
    parts = [_condition(part, columns) for part in node["conditions"]]
    if node["operator"] == "OR":
        return any_of(parts) if parts else columns.never
    joined = all_of(parts) if parts else columns.always
    if node["operator"] == "AND":
        return joined
    if node["operator"] == "NOT":
        return none_of(joined)
    raise FilterError(f"Unknown logical operator {node['operator']!r}; use AND, OR or NOT.")


def _comparison(field: str, operator: object, value: object, columns: Conditions) -> str:
    name = field.removeprefix("meta.")
    if field == name and field in _OWN:
        raise FilterError(f"The field {field!r} cannot be filtered; use id or metadata.")
    if operator in ("==", "!="):
        found = _equal(name, value, columns, is_id=field == "id")
        return found if operator == "==" else none_of(found)
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise FilterError(f"The operator {operator!r} has {value!r}; it needs a list.")
        parts = [_equal(name, each, columns, is_id=field == "id") for each in value]
        found = any_of(parts) if parts else columns.never
        return found if operator == "in" else none_of(found)
    if operator in _ORDERS:
        return _ordered(name, str(operator), value, columns)
    raise FilterError(f"Unknown comparison operator {operator!r}.")


def _equal(name: str, value: object, columns: Conditions, *, is_id: bool) -> str:
    if is_id:
        return columns.id_in([str(value)])
    value = plain_value(value)
    if isinstance(value, (list, dict)):
        raise FilterError(f"{name!r} cannot be compared with {value!r}; compare it with a value.")
    found = columns.equals(name, value)
    if (moment := time_of(value)) is None:
        return found
    return any_of([found, columns.equals(TIMES + name, moment)])


def _ordered(name: str, order: str, value: object, columns: Conditions) -> str:
    value = plain_value(value)
    if value is None:
        return columns.never
    if isinstance(value, (str, datetime)):
        if (moment := time_of(value)) is None:
            raise FilterError(
                f"{name!r} cannot be compared by {order} with {value!r}: texts can only be ordered "
                "if they are ISO dates."
            )
        found: Sequence[str] = [
            columns.compares(column, order, moment) for column in (name, TIMES + name)
        ]
        return any_of(found)
    if not isinstance(value, (int, float)):
        raise FilterError(f"{name!r} cannot be compared by {order} with {value!r}.")
    return columns.compares(name, order, value)


# A column whose value is "none" if the document has no embedding, and "zero" if all components of
# its embedding are 0. For both, the index stores the unit vector (1, 0, ..., 0).
VECTOR = "_vector"
NORM = "_norm"  # norm of an embedding that is not a unit vector; an index holds unit vectors
REST = "_document"  # the parts of a document that an index has no columns for

_UNIT = 1e-6  # largest difference of a norm from 1 for a unit vector


def record_of(document: Document, *, marks_vector: bool) -> Record:
    """Return the record of a document.

    With ``marks_vector``, its metadata have what the index does not keep of an embedding: that it
    is missing, that all its components are 0, or its norm.
    """
    for name in document.meta:
        if name in (VECTOR, NORM, REST) or name.startswith(TIMES):
            raise CorpusError(f"Document {document.id!r} has metadata named {name!r}; rename it.")
    metadata: dict[str, object] = dict(document.meta)
    for name, value in document.meta.items():
        _add_columns(metadata, name, value)
    if rest := _rest_of(document):
        metadata[REST] = rest
    if marks_vector:
        norm = float(np.linalg.norm(document.embedding or 0.0))
        if norm == 0.0:
            metadata[VECTOR] = "zero" if document.embedding else "none"
        elif abs(norm - 1.0) > _UNIT:
            metadata[NORM] = norm
    return Record(document.id, document.content or "", metadata)


def _rest_of(document: Document) -> dict[str, object]:
    rest: dict[str, object] = {}
    if document.content is None:
        rest["content"] = None
    if document.blob is not None:
        rest["blob"] = document.blob.to_dict()
    if document.sparse_embedding is not None:
        rest["sparse_embedding"] = document.sparse_embedding.to_dict()
    return rest


def _add_columns(metadata: dict[str, object], name: str, value: object) -> None:
    """Add columns for the time of an ISO date, and for the values of a mapping."""
    if isinstance(value, str) and (moment := time_of(value)) is not None:
        metadata[TIMES + name] = moment
    elif isinstance(value, dict):
        for key, inner in value.items():
            column = f"{name}.{key}"
            if isinstance(inner, (str, int, float, bool)):
                metadata.setdefault(column, inner)
            _add_columns(metadata, column, inner)


def document_of(
    doc_id: str,
    text: str,
    metadata: Mapping[str, object],
    *,
    embedding: Sequence[float] | None = None,
    score: float | None = None,
) -> Document:
    """Return the document of a record."""
    # Columns that `record_of` added for the values of mappings. If the user's metadata had an equal
    # entry of the same name, it cannot be distinguished from these and is left out too.
    added: dict[str, object] = {}
    for name, value in metadata.items():
        if isinstance(value, dict):
            _add_columns(added, name, value)
    rest = cast("dict[str, dict[str, object] | None]", metadata.get(REST) or {})
    mark = metadata.get(VECTOR)
    meta = {
        name: value
        for name, value in metadata.items()
        if name not in (REST, VECTOR, NORM)
        and not name.startswith(TIMES)
        and not (name in added and (added[name] == value or value != value))
    }
    if embedding is not None:
        if isinstance(norm := metadata.get(NORM), float):
            embedding = [value * norm for value in embedding]
        if mark is not None:
            embedding = None if mark == "none" else [0.0] * len(embedding)
    blob, sparse = rest.get("blob"), rest.get("sparse_embedding")
    return Document(
        id=doc_id,
        content=None if "content" in rest else text,
        meta=meta,
        blob=ByteStream.from_dict(blob) if blob else None,
        sparse_embedding=SparseEmbedding.from_dict(sparse) if sparse else None,
        embedding=embedding,
        score=score,
    )


def vectors_of(documents: Sequence[Document], dim: int) -> NDArray[np.float32]:
    """Return the embeddings; (1, 0, ..., 0) for one that is missing or has only zeros."""
    place = [1.0] + [0.0] * (dim - 1)
    return np.array(
        [
            document.embedding if document.embedding and any(document.embedding) else place
            for document in documents
        ],
        np.float32,
    )
