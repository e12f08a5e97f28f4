"""Estimate the memory that Arrow rows will take as Python values, before they are converted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# Memory of a small Python value with the reference to it, and of an empty dict, in bytes.
_VALUE_BYTES, _DICT_BYTES = 64, 232

Sizes = NDArray[np.int64]


def row_bytes(batch: pa.RecordBatch, *, held: bool) -> Sizes:
    """Return the estimated bytes of each row, int64 (n_rows,).

    Args:
        batch: The rows. The offsets in their columns must be valid, since they are used as indices.
        held: True: count text as Python strings in memory, with 4 bytes for each UTF-8 byte unless
            the whole column is known to be ASCII. False: count text as UTF-8, as in the file.
    """
    sizes = (_sizes(column, held) for column in batch.columns)
    return sum(sizes, np.zeros(batch.num_rows, np.int64))


def _sizes(column: pa.Array, held: bool) -> Sizes:
    """Return the estimated bytes of each value of a column; ``held`` is that of `row_bytes`."""
    kind, types = column.type, pa.types
    if isinstance(column, pa.ExtensionArray):
        return _sizes(column.storage, held)
    if types.is_dictionary(kind):
        return _picked(_sizes(column.dictionary, held), _integers(column.indices))
    if types.is_run_end_encoded(kind):
        rows = np.arange(column.offset, column.offset + len(column))
        runs = np.searchsorted(_integers(column.run_ends), rows, "right").astype(np.int64)
        return _picked(_sizes(column.values, held), runs)
    if types.is_struct(kind):
        fields = [_sizes(column.field(i), held) for i in range(kind.num_fields)]
        return sum(fields, np.full(len(column), _DICT_BYTES, np.int64))
    if types.is_nested(kind):
        return _sizes_of_lists(column, held)
    sizes = np.full(len(column), _VALUE_BYTES, np.int64)
    if types.is_fixed_size_binary(kind):
        return sizes + (4 if held else 1) * int(kind.byte_width)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # Each value is a view of 16 bytes, whose first 4 bytes are the length of the value. pyarrow
        # has no function that returns these lengths.
        lengths = np.frombuffer(column.buffers()[1], "<i4")[::4].astype(np.int64)
        return sizes + (4 if held else 1) * lengths[column.offset : column.offset + len(column)]
    if types.is_string(kind) or types.is_large_string(kind):
        wide = held and not pc.all(pc.string_is_ascii(column), min_count=0).as_py()
        return sizes + (4 if wide else 1) * _integers(pc.binary_length(column))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return sizes + (4 if held else 1) * _integers(pc.binary_length(column))
    return sizes


def _sizes_of_lists(column: pa.Array, held: bool) -> Sizes:
    kind, types = column.type, pa.types
    own = np.full(len(column), _VALUE_BYTES, np.int64)
    if types.is_map(kind):
        values = 2 * _VALUE_BYTES + _sizes(column.keys, held) + _sizes(column.items, held)
    elif types.is_union(kind):
        return own + int(column.nbytes)
    else:
        values = _sizes(column.values, held)
    ends: Sizes = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    if types.is_fixed_size_list(kind):
        starts = int(kind.list_size) * np.arange(column.offset, column.offset + len(column) + 1)
        own += np.diff(ends[starts])
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        starts = _integers(column.offsets)
        own += ends[starts + _integers(column.sizes)] - ends[starts]
    else:
        own += np.diff(ends[_integers(column.offsets)])
    return own


def _picked(sizes: Sizes, indices: Sizes) -> Sizes:
    """Return the sizes at the indices; a null has the index 0 and counts as the first value.

    If ``sizes`` is empty, all indices stand for nulls, and a null counts as one small value.
    """
    return sizes[indices] if len(sizes) else np.full(len(indices), _VALUE_BYTES, np.int64)


def _integers(column: pa.Array) -> Sizes:
    """Return a column of integers as an int64 array, with 0 for null."""
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), np.int64)
