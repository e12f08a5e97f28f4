"""Plan how many rows of a Parquet row group to decode at a time within a memory limit."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from sbert_search.base.memory import mib
from sbert_search.corpus.formats.limits import RowLimit
from sbert_search.corpus.formats.parquet_pages import ColumnPages
from sbert_search.corpus.formats.rows import BadRow

BLOCK_ROWS = 1024  # maximum number of rows to decode at a time
BUFFER_BYTES = 1 << 20  # bytes read from the file at a time, for each column
MAX_PAGE_BYTES = 256 << 20  # maximum size of one page if there is no memory budget

# Minimum bytes of a decoded value by its physical Parquet type. For FIXED_LEN_BYTE_ARRAY the schema
# of the file has the width.
_WIDTHS = {
    "BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 1
}  # fmt: skip
_REPEATING = "DELTA_BYTE_ARRAY"  # in this encoding a few bytes can repeat a long previous value


def plan_group(file: pq.ParquetFile, path: Path, group: int, limit: RowLimit) -> int:
    """Return how many rows of a row group to decode at a time.

    A row group stores each column as a sequence of pages; a page is always decompressed as a whole.

    Raises:
        BadRow: The pages, and the values of list columns, need too much memory.
        ValueError: The page headers are damaged.
    """
    metadata = file.metadata.row_group(group)
    # ``needed``: memory for reading: buffers, pages, and all values of columns with lists.
    # ``row_bytes``: memory of one decoded row. ``largest``: size of the largest page.
    needed = row_bytes = largest = 0
    with path.open("rb") as stream:
        for column in range(metadata.num_columns):
            chunk = metadata.column(column)
            pages = ColumnPages.read(stream, chunk)
            largest = max(largest, pages.largest, pages.dictionary)
            needed += min(BUFFER_BYTES, chunk.total_compressed_size)
            needed += 2 * pages.largest + 3 * pages.dictionary
            _check(needed, largest, limit)
            width = _WIDTHS.get(chunk.physical_type) or file.schema.column(column).length
            value_bytes = max(width, _longest_value(path, group, chunk, pages, limit))
            row_bytes += value_bytes * max(1, -(-chunk.num_values // max(1, metadata.num_rows)))
            if file.schema.column(column).max_repetition_level:
                needed += max(chunk.total_uncompressed_size, value_bytes * chunk.num_values)
                _check(needed, largest, limit)
    return max(1, min(BLOCK_ROWS, limit.block_bytes // max(1, row_bytes)))


def _check(total: int, largest: int, limit: RowLimit) -> None:
    """Reject a row group whose pages need too much memory, before decompressing them.

    Args:
        total: Memory for reading, in bytes. With a memory budget, at most an eighth of the budget
            is allowed.
        largest: Bytes of the largest page. Without a budget, `MAX_PAGE_BYTES` are allowed.
        limit: Has the budget, if there is one.
    """
    budget = limit.budget
    needed, allowed = (largest, MAX_PAGE_BYTES) if budget is None else (total, budget // 8)
    if needed > allowed:
        more = ";" if budget is None else f" with --memory {mib(budget)}; allow more, or"
        raise BadRow(
            f"the pages of its row group take {mib(needed)} of memory at a time, and "
            f"{mib(allowed)} are allowed{more} write the file with smaller pages and row groups"
        )


def _longest_value(
    path: Path, group: int, chunk: pq.ColumnChunkMetaData, pages: ColumnPages, limit: RowLimit
) -> int:
    """Return the bytes to count for one decoded value of a column.

    Where an encoding can repeat a long value in a few bytes, this is an upper bound of the longest
    value. Otherwise it is the mean size of a value in the page where this mean is largest.
    """
    if chunk.physical_type != "BYTE_ARRAY":  # all values have one width, which `plan_group` knows
        return pages.widest
    if _REPEATING in chunk.encodings:
        return pages.largest
    if pages.dictionary * BLOCK_ROWS <= limit.block_bytes:
        return max(pages.widest, pages.dictionary)
    return max(pages.widest, _longest_in_dictionary(path, group, chunk, pages))


def _longest_in_dictionary(
    path: Path, group: int, chunk: pq.ColumnChunkMetaData, pages: ColumnPages
) -> int:
    """Return the bytes of the longest value of a column's dictionary; every row may have it.

    If pyarrow cannot return the dictionary, the result is the size of the dictionary page.
    """
    name = chunk.path_in_schema
    if "." in name:
        return pages.dictionary
    with pq.ParquetFile(path, read_dictionary=[name], buffer_size=BUFFER_BYTES) as file:
        batches = file.iter_batches(1, row_groups=[group], columns=[name], use_threads=False)
        batch = next(batches, None)  # None: the pages of a damaged file state no values
    column = None if batch is None else batch.column(0)
    if column is None or not hasattr(column, "dictionary"):
        return pages.dictionary
    return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
