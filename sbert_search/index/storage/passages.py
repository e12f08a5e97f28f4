"""Reading passages and documents from the rows of a segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.index.storage.columns import PREFIX
from sbert_search.index.storage.segments import READ_BYTES, Segment
from sbert_search.records import Document


@dataclass(frozen=True, slots=True)
class StoredPassage:
    """A stored passage, with the document it belongs to.

    Attributes:
        document: The whole document.
        row: Row of this passage: its number in the index.
        doc_row: Row of the document's first passage, which identifies the document in an index.
        chunk: Number of this passage in the document, from 0.
        char_start: Start of the passage in ``document.full_text``.
        char_end: End of the passage in ``document.full_text``.
        n_tokens: Number of tokens embedded.
        lost_tokens: Number of tokens cut off, because the model reads only a limited number.
    """

    document: Document
    row: int
    doc_row: int
    chunk: int
    char_start: int
    char_end: int
    n_tokens: int
    lost_tokens: int

    @property
    def text(self) -> str:
        """Text of the passage, with the title if the passage contains it."""
        return self.document.full_text[self.char_start : self.char_end]


def read_passages(
    places: Iterable[tuple[Segment, NDArray[np.int64]]],
) -> Iterator[StoredPassage]:
    """Read the passages at some positions of segments, in this order, with their documents.

    Args:
        places: Segments, each with positions in it, int64 (n,).

    Raises:
        CorruptIndex: A passage or its document cannot be read.
    """
    wanted = []  # segment, positions, and for each position that of its document's first passage
    needed = []  # segment, and all positions to read
    for segment, positions in places:
        at = positions.tolist()
        firsts = (positions - segment.chunks[positions]).tolist()
        wanted.append((segment, positions, firsts))
        needed.append((segment, list(dict.fromkeys(at + firsts))))
    values = iter(_values(needed))
    for (segment, positions, firsts), (_, here) in zip(wanted, needed, strict=True):
        read = {at: next(values) for at in here}
        places_of = zip(segment.rows[positions].tolist(), positions.tolist(), firsts, strict=True)
        for row, position, first in places_of:
            passage, chunk = read[position], position - first
            yield StoredPassage(
                document=_document(read[first]),
                row=row,
                doc_row=row - chunk,
                chunk=chunk,
                char_start=passage["char_start"],
                char_end=passage["char_end"],
                n_tokens=passage["n_tokens"],
                lost_tokens=passage["lost_tokens"],
            )


def _values(places: Sequence[tuple[Segment, list[int]]]) -> Iterator[dict[str, Any]]:
    """Read rows of segments as dictionaries of values by column name.

    Rows of successive segments with the same columns are converted together, since each call of
    `to_pylist` takes 100 microseconds in addition to the time of its rows.
    """
    for _, group in groupby(places, lambda place: place[0].record.columns):
        for rows in _groups(
            (row, segment.max_row_bytes(position))
            for segment, at in group
            for position, row in zip(at, segment.rows_at(at), strict=True)
        ):
            yield from pa.concat_batches(rows).to_pylist()


def _groups(rows: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[list[pa.RecordBatch]]:
    """Group successive rows to at most `READ_BYTES`; a larger row is a group of its own.

    Args:
        rows: Each row with an upper bound for its bytes.
    """
    group: list[pa.RecordBatch] = []
    size = 0
    for row, n_bytes in rows:
        if group and size + n_bytes > READ_BYTES:
            yield group
            group, size = [], 0
        group.append(row)
        size += n_bytes
    if group:
        yield group


def read_documents(segment: Segment, live: NDArray[np.bool_] | None) -> Iterator[Document]:
    """Read the documents of a segment in the order of their rows, a batch at a time.

    Args:
        segment: The segment.
        live: Which positions are neither deleted nor replaced, bool (n_rows,); None: all.
    """
    first = segment.chunks == 0 if live is None else (segment.chunks == 0) & live
    step = segment.batch_rows
    for start in range(0, segment.n_rows, step):
        marks = first[start : start + step]
        if marks.any():
            yield from map(_document, compress(segment.passages(start // step), marks))


def _document(values: Mapping[str, Any]) -> Document:
    metadata = {
        name.removeprefix(PREFIX): value
        for name, value in values.items()
        if name.startswith(PREFIX) and value is not None
    }
    return Document(
        doc_id=values["doc_id"],
        text=values["text"] or "",
        title=values["title"] or "",
        metadata=metadata,
        source=values["source"] or "",
    )
