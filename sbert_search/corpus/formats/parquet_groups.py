"""How much of a row group of Parquet can be read at a time within a limit."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from sbert_search.corpus.formats.limits import RowLimit
from sbert_search.corpus.formats.parquet_pages import ColumnPages
from sbert_search.corpus.formats.rows import BadRow
from sbert_search.runtime.memory import mib

BLOCK_ROWS = 1024
BUFFER_BYTES = 1 << 20  # of a column, that are read from the file at a time
MAX_PAGE_BYTES = 256 << 20  # where there is no budget

_REPEATING = "DELTA_BYTE_ARRAY"  # where a value of few bytes can repeat the one before it


def plan_group(file: pq.ParquetFile, path: Path, group: int, limit: RowLimit) -> int:
    """Return how many rows of a row group to decode at a time.

    Raises:
        BadRow: Its pages alone take too much.
        ValueError: They are broken.
    """
    facts = file.metadata.row_group(group)
    taken = row = largest = 0
    with path.open("rb") as stream:
        for place in range(facts.num_columns):
            chunk = facts.column(place)
            pages = ColumnPages.read(stream, chunk)
            largest = max(largest, pages.largest, pages.dictionary)
            taken += min(BUFFER_BYTES, chunk.total_compressed_size)
            taken += 2 * pages.largest + 3 * pages.dictionary
            _check(taken, largest, limit)
            value = _longest_value(path, group, chunk, pages, limit)
            row += value * max(1, -(-chunk.num_values // max(1, facts.num_rows)))
            if file.schema.column(place).max_repetition_level:
                taken += max(chunk.total_uncompressed_size, value * chunk.num_values)
                _check(taken, largest, limit)
    return max(1, min(BLOCK_ROWS, limit.block_bytes // max(1, row)))


def _check(taken: int, largest: int, limit: RowLimit) -> None:
    """Refuse a row group whose pages take too much, before any of them is decompressed."""
    budget = limit.budget
    needed, allowed = (largest, MAX_PAGE_BYTES) if budget is None else (taken, budget // 8)
    if needed > allowed:
        more = "" if budget is None else f" with --memory {mib(budget)}; allow more"
        raise BadRow(
            f"the pages of its row group take {mib(needed)} of memory at a time, and "
            f"{mib(allowed)} are allowed{more}, or write the file with smaller pages and row groups"
        )


def _longest_value(
    path: Path, group: int, chunk: pq.ColumnChunkMetaData, pages: ColumnPages, limit: RowLimit
) -> int:
    """Return the bytes that each value of a column may take in a block of rows."""
    if chunk.physical_type != "BYTE_ARRAY":
        return max(1, pages.widest)
    if _REPEATING in chunk.encodings:
        return pages.largest
    if pages.dictionary * BLOCK_ROWS <= limit.block_bytes:
        return max(pages.widest, pages.dictionary)
    return max(pages.widest, _longest_in_dictionary(path, group, chunk, pages))


def _longest_in_dictionary(
    path: Path, group: int, chunk: pq.ColumnChunkMetaData, pages: ColumnPages
) -> int:
    """Return the bytes of the longest value of a dictionary page, which any row can have."""
    name = chunk.path_in_schema
    if "." in name:
        return pages.dictionary
    with pq.ParquetFile(path, read_dictionary=[name], buffer_size=BUFFER_BYTES) as file:
        batches = file.iter_batches(1, row_groups=[group], columns=[name], use_threads=False)
        column = next(batches).column(0)
    if not hasattr(column, "dictionary"):
        return pages.dictionary
    return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
