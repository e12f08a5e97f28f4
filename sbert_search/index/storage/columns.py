"""Typed metadata columns: their Arrow types, and adding the columns of a source to an index."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.base.cache import typed_lru_cache
from sbert_search.errors import IndexStoreError
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.records import Document, MetadataValue, ScalarValue

PREFIX = "meta."  # before the names of metadata columns in a docs file (seg/*.docs.arrow)

_SCALAR_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.large_string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}
ARROW_TYPES: Mapping[str, pa.DataType] = {
    **_SCALAR_TYPES,
    **{f"list[{name}]": pa.large_list(kind) for name, kind in _SCALAR_TYPES.items()},
}

_LISTS = {f"list[{name}]": name for name in _SCALAR_TYPES}  # type of the values of a list column
_PYTHON_TYPES: Mapping[str, type] = {
    "string": str,
    "int64": int,
    "float64": float,
    "bool": bool,
    "timestamp": datetime,
    "date": date,
}

FIXED = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("doc_id", pa.large_string(), nullable=False),
        pa.field("chunk", pa.int32(), nullable=False),
        pa.field("char_start", pa.int64(), nullable=False),
        pa.field("char_end", pa.int64(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("lost_tokens", pa.int32(), nullable=False),
        # Title and all columns after it have values only in the first passage of a document.
        pa.field("title", pa.large_string()),
        pa.field("text", pa.large_string()),
        pa.field("source", pa.large_string()),
    ]
)

ABOVE_INT64 = 2.0**63  # the first float64 above all int64


def schema(columns: Mapping[str, ColumnType]) -> pa.Schema:
    """Return the schema of a docs file with these metadata columns, sorted by name."""
    metadata = [pa.field(PREFIX + name, ARROW_TYPES[columns[name]]) for name in sorted(columns)]
    return pa.schema([*FIXED, *metadata])


def unique_names(
    columns: Iterable[str], own: Collection[str], prefix: str = PREFIX
) -> dict[str, str]:
    """Map each metadata column to a name that is unique in a file with the columns ``own``.

    If the name of a column is taken, the prefix is put before it until the result is free.
    """
    columns, names = list(columns), dict[str, str]()
    for name in columns:
        stored = name
        while stored in own or (stored != name and stored in columns):
            stored = prefix + stored
        names[name] = stored
    return names


def textless_table(doc_ids: pa.Array, sources: pa.Array, first_row: int) -> pa.Table:
    """Make the table of documents that have no text and no metadata, with one passage each."""
    n_rows = len(doc_ids)
    columns = {
        "row": pa.array(np.arange(first_row, first_row + n_rows)),
        "doc_id": doc_ids,
        "source": sources,
    }
    arrays = [
        columns[field.name] if field.name in columns else _blank(field.type, n_rows)
        for field in FIXED
    ]
    return pa.table(arrays, FIXED)


@typed_lru_cache(maxsize=16)
def _blank(kind: pa.DataType, n_rows: int) -> pa.Array:
    """Return an array of zeros or empty strings."""
    return pa.repeat(pa.scalar("" if kind == pa.large_string() else 0, kind), n_rows)


def merge(old: Mapping[str, ColumnType], new: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
    """Merge the columns of a new source into those of an index; refuse another type.

    From int64 and float64 comes float64. From list[string] and a list of another type comes the
    other type, since a column of empty lists is a list[string]. The caller checks that float64 can
    hold the integers of the index, or that the lists are empty.
    """
    merged = dict(old)
    for name, kind in new.items():
        before = merged.setdefault(name, kind)
        if {before, kind} == {"int64", "float64"}:
            merged[name] = "float64"
        elif {before, kind} <= _LISTS.keys() and "list[string]" in (before, kind):
            merged[name] = before if kind == "list[string]" else kind
        elif before != kind:
            raise IndexStoreError(
                f"The metadata column {name!r} is {before} in the index and {kind} in the source; "
                "rename it in the source, or make its values the same type."
            )
    return merged


def metadata_array(documents: Sequence[Document | None], name: str, kind: ColumnType) -> pa.Array:
    """Make the array of a metadata column; None, or a document without a value, gives null."""
    values = [None if doc is None else _fitted(doc, name, kind) for doc in documents]
    try:
        return pa.array(values, ARROW_TYPES[kind])
    except (pa.ArrowException, OverflowError) as error:
        raise IndexStoreError(
            f"A value of the metadata column {name!r} does not fit {kind}: {error}."
        ) from error


def _fitted(document: Document, name: str, kind: ColumnType) -> MetadataValue:
    value = document.metadata.get(name)
    if value is None:
        return None
    inner = _LISTS.get(kind)
    fitted = _fitted_list(value, inner) if inner else _fitted_scalar(value, kind)
    if fitted is None:
        remedy = f"this column of the index has the type {kind}"
        if any(isinstance(v, float) and not math.isfinite(v) for v in _items(value)):
            remedy = "write a finite number or null"
        raise IndexStoreError(f"Document {document.doc_id!r} has {name} = {value!r}; {remedy}.")
    return fitted


def _fitted_list(value: MetadataValue, kind: str) -> list[ScalarValue] | None:
    """Return the value as a list of values of a type; None if it is no list of such values."""
    if not isinstance(value, (list, tuple)):
        return None
    fitted = [_fitted_scalar(item, kind) for item in value]
    kept = [item for item in fitted if item is not None]
    return kept if len(kept) == len(fitted) else None


def _fitted_scalar(value: MetadataValue, kind: str) -> ScalarValue | None:
    """Return the value, or an equal one of the type; None if the type cannot hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if type(value) is _PYTHON_TYPES[kind]:
        return cast(ScalarValue, value)
    if kind == "float64" and type(value) is int and int(float(value)) == value:
        return float(value)
    return None


def _items(value: MetadataValue) -> Sequence[MetadataValue]:
    return value if isinstance(value, (list, tuple)) else [value]


def exact_as_float(integers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the integers that float64 holds exactly; all of magnitude up to 2**53 are marked."""
    floats = integers.astype(np.float64)
    # A float of 2**63 would overflow when it is cast back, so it is replaced by 0 first.
    fits = floats < ABOVE_INT64
    same: NDArray[np.bool_] = np.where(fits, floats, 0.0).astype(np.int64) == integers
    return fits & same
