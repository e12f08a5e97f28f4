"""Reading, making and merging files of postings: for each term, the documents that contain it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from sbert_search.errors import CorruptIndex
from sbert_search.index.lexical.postings import (
    Group,
    Live,
    Postings,
    count_terms,
    live_lengths,
    merge,
    table_of_terms,
)
from sbert_search.index.lexical_settings import LexicalSettings
from sbert_search.index.storage import npy
from sbert_search.index.storage.manifest import LexicalRecord, Manifest
from sbert_search.index.storage.passages import read_documents
from sbert_search.index.storage.segment_writer import record_of
from sbert_search.index.storage.segments import Segment, check_hash, open_checked
from sbert_search.index.storage.transaction import Transaction
from sbert_search.runtime.disk import files
from sbert_search.runtime.disk.folders import Folder

SLICE_DOCS = 65_536  # documents whose postings are counted in memory at a time
SLICE_CHARS = 16 << 20  # characters of the documents counted at a time

Sources = Sequence[tuple[Postings, Live]]


class LexicalFiles:
    """The postings of a segment on disk: mapped when opened, checked when first searched.

    Raises:
        FileNotFoundError: A file is gone, as after a compaction by another process.
        CorruptIndex: A file has another size than recorded.
    """

    def __init__(self, folder: Folder, record: LexicalRecord, n_docs: int) -> None:
        self.record, self._n_docs = record, n_docs
        self._views = [open_checked(folder, file, hash_up_to=0) for file in record.files]

    @cached_property
    def postings(self) -> Postings:
        """The postings, as mapped arrays.

        Raises:
            CorruptIndex: A file differs from its record or does not fit the other files.
        """
        record = self.record
        for file, view in zip(record.files, self._views, strict=True):
            check_hash(view, file)
        terms, pairs, lengths = self._views
        postings = Postings(
            npy.read(terms, record.terms.name, "u8", (2, record.n_terms + 1)),
            npy.read(pairs, record.pairs.name, "u4", (record.n_pairs, 2)),
            npy.read(lengths, record.lengths.name, "u4", (self._n_docs,)),
        )
        if not postings.is_sound:
            expected = "consistent postings of the segment"
            raise CorruptIndex(record.terms.name, expected, "inconsistent ones")
        return postings


def write_lexical(folder: Folder, number: int, sources: Sources) -> LexicalRecord:
    """Merge the postings of the live documents of some sources into files, in bounded memory.

    Args:
        folder: The index.
        number: An unused file number.
        sources: Postings, and which of their documents are live (neither deleted nor replaced),
            bool (n_docs,); None: all.

    Raises:
        OSError: The disk failed. The partial files are in no manifest, so a later writer removes
            them.
    """
    n_pairs = sum(_n_live(postings, live) for postings, live in sources)
    with files.NewFile(folder / f"lex/{number:06d}.pairs.npy") as pairs:
        pairs.write(npy.header("u4", (n_pairs, 2)))
        table = table_of_terms(_written(merge(sources), pairs))
    terms = npy.write(folder / f"lex/{number:06d}.terms.npy", table)
    lengths = npy.write(folder / f"lex/{number:06d}.lengths.npy", live_lengths(sources))
    return LexicalRecord(
        n_terms=table.shape[1] - 1,
        n_pairs=n_pairs,
        terms=record_of(terms),
        pairs=record_of(pairs),
        lengths=record_of(lengths),
    )


def texts_of(docs: pa.Table) -> Iterator[tuple[str, str]]:
    """Read title and text of each document from the row of its first passage (chunk 0)."""
    columns = (docs.column(name).to_pylist() for name in ("chunk", "title", "text"))
    return (
        (title or "", text or "") for chunk, title, text in zip(*columns, strict=True) if chunk == 0
    )


def count_segment(segment: Segment, settings: LexicalSettings) -> Iterator[Postings]:
    """Count the terms of all documents of a segment, including dead ones, a slice at a time."""
    texts: list[tuple[str, str]] = []
    n_chars = 0
    for document in read_documents(segment, None):
        texts.append((document.title, document.text))
        n_chars += len(document.title) + len(document.text)
        if len(texts) == SLICE_DOCS or n_chars >= SLICE_CHARS:
            yield count_terms(texts, settings)
            texts, n_chars = [], 0
    if texts:
        yield count_terms(texts, settings)


def with_lexical(work: Transaction, new: Manifest) -> Manifest:
    """Write the postings of every segment that has none, if the index has lexical settings.

    Args:
        work: The transaction to write in.
        new: The manifest to change.

    Raises:
        CorruptIndex: Documents cannot be read.
        OSError: The disk failed.
    """
    if new.settings.lexical is None:
        return new
    segments = []
    for record in new.segments:
        if record.lexical is None:
            segment = Segment(work.folder, record, new.settings)
            record = replace(record, lexical=_make(work, segment, new.settings.lexical))
        segments.append(record)
    return replace(new, segments=tuple(segments))


def _make(work: Transaction, segment: Segment, settings: LexicalSettings) -> LexicalRecord:
    """Write the postings of a segment from its documents, in bounded memory."""
    parts = [
        (write_lexical(work.folder, work.new_number(), [(postings, None)]), len(postings.lengths))
        for postings in count_segment(segment, settings)
    ]
    if len(parts) == 1:
        return parts[0][0]
    sources = [(LexicalFiles(work.folder, part, n_docs).postings, None) for part, n_docs in parts]
    whole = write_lexical(work.folder, work.new_number(), sources)
    work.remove(file.name for part, _ in parts for file in part.files)
    return whole


def _written(groups: Iterable[Group], file: files.NewFile) -> Iterator[Group]:
    for group in groups:
        if len(group.pairs):  # there are none if the documents have only stop words
            file.write(np.ascontiguousarray(group.pairs))
        yield group


def _n_live(postings: Postings, live: Live) -> int:
    """Count the postings of live documents, a block at a time."""
    if live is None:
        return len(postings.pairs)
    docs, step = postings.pairs[:, 0], 1 << 22
    return sum(int(live[docs[i : i + step]].sum()) for i in range(0, len(docs), step))
