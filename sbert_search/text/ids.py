"""Ids of documents: checked as one Arrow column, or read from a file with one id per line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sbert_search.errors import CorpusError
from sbert_search.text.fields import MAX_ID_CHARS, checked_id
from sbert_search.text.formats.lines import read_lines
from sbert_search.text.formats.rows import BadRow, decode, map_rows, raw_rows

IdsLike: TypeAlias = Iterable[str | int] | NDArray[np.integer] | pa.Array
"""Ids of rows: texts or integers, in a numpy array, an Arrow array, a list or another iterable."""


def id_column(ids: IdsLike) -> tuple[pa.Array, dict[int, BadRow]]:
    """Return a column of ids, large_string (n,), and the reasons why some ids cannot be used.

    The column has "" for each unusable id. The reasons are stored by row number from 0.
    """
    is_listed = isinstance(ids, Iterable) and not isinstance(ids, str)
    if not is_listed or (isinstance(ids, np.ndarray) and ids.ndim != 1):
        raise CorpusError("ids is no list of ids; pass one id for each vector.")
    values = ids if isinstance(ids, (np.ndarray, pa.Array)) else list(ids)
    if isinstance(values, np.ndarray) and values.dtype.kind == "U":
        values = values.astype(object)  # else pyarrow cuts each text at its first NUL
    try:
        column = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return _one_by_one(values)  # ids of several types, or a text with a lone surrogate
    if pa.types.is_integer(column.type) and not column.null_count:
        return column.cast(pa.large_string()), {}
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return _one_by_one(values)
    column = column.cast(pa.large_string())
    blank = pc.equal(pc.utf8_trim_whitespace(column), "")
    long = pc.greater(pc.utf8_length(column), MAX_ID_CHARS)
    bad = pc.or_(pc.or_(blank, long), pc.match_substring(column, "\0")).fill_null(True)
    bad_rows: dict[int, BadRow] = {}
    for row in np.flatnonzero(bad.to_numpy(zero_copy_only=False)).tolist():
        _checked(row, column[row].as_py(), bad_rows)
    return pc.if_else(bad, "", column) if bad_rows else column, bad_rows


def numbered_ids(prefix: str, start: int, stop: int) -> pa.Array:
    """Return a text for each number from ``start`` to ``stop`` - 1: the prefix, then the number."""
    kind = pa.large_string()
    numbers = pa.array(np.arange(start, stop)).cast(kind)
    return pc.binary_join_element_wise(pa.scalar(prefix, kind), numbers, pa.scalar("", kind))


def _one_by_one(values: Iterable[object]) -> tuple[pa.Array, dict[int, BadRow]]:
    cells = values.tolist() if isinstance(values, (np.ndarray, pa.Array)) else values
    bad_rows: dict[int, BadRow] = {}
    texts = [_checked(row, value, bad_rows) for row, value in enumerate(cells)]
    return pa.array(texts, pa.large_string()), bad_rows


def _checked(row: int, value: object, bad_rows: dict[int, BadRow]) -> str:
    try:
        return checked_id(value, "id")
    except BadRow as bad:
        bad_rows[row] = bad
        return ""


def read_ids(stream: BinaryIO, shown: str) -> list[str]:
    r"""Read a UTF-8 file with one id per line, white space included; empty lines are dropped.

    Only ``\n`` and ``\r\n`` end a line, so an id may contain the other line separators of Unicode.
    """
    rows = raw_rows(read_lines(stream), f"{shown}:", lambda line: {"text": decode(line)})
    return [doc_id for doc_id in map_rows(rows, lambda row: row.text) if doc_id]
