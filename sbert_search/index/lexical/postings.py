"""Postings: for each term, the documents that contain it; their files, read and merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.base.folders import Folder
from sbert_search.errors import CorruptIndex
from sbert_search.index.lexical import vocabulary
from sbert_search.index.lexical.analyzer import STOP_WORD, term_reader
from sbert_search.index.lexical.vocabulary import (
    WordList,
    lists_words,
    read_words,
    with_terms,
    write_words,
)
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.storage import segments as npy
from sbert_search.index.storage.manifest import FileRecord, LexicalRecord, Manifest
from sbert_search.index.storage.rows import read_documents
from sbert_search.index.storage.segments import REMAKE, Segment, check_hash, open_checked

if TYPE_CHECKING:
    from sbert_search.index.storage.transaction import Transaction


MERGE_POSTINGS = 1 << 21  # approximate number of postings that a merge holds at a time
NO_TERM = np.uint64(2**64 - 1)  # end mark after the last hash

_DEAD = np.uint32(2**32 - 1)  # new number of a document that is dropped

Live = NDArray[np.bool_] | None
"""Which documents or rows of a segment are neither deleted nor replaced, bool (n,); None: all."""


class Postings(NamedTuple):
    """The postings of some documents, which are numbered from 0.

    The last column of ``terms`` is `NO_TERM` and the number of postings. Each occurrence in a title
    counts ``LexicalSettings.title_weight`` times.
    """

    # (2, n_terms + 1): hash of each term, ascending, and its first posting
    terms: NDArray[np.uint64]
    pairs: NDArray[np.uint32]  # (n_postings, 2): document and count, by term, then document
    lengths: NDArray[np.uint32]  # (n_docs,): sum of the counts of each document

    @classmethod
    def of_blank(cls, n_docs: int) -> Postings:
        """Make the postings of documents that contain no term."""
        pairs = np.empty((0, 2), np.uint32)
        return cls(table_of_terms([]), pairs, np.zeros(n_docs, np.uint32))

    def of(self, terms: Iterable[int]) -> list[NDArray[np.uint32]]:
        """Return the pairs of each term, uint32 (n, 2); n is 0 if no document contains it."""
        hashes, starts = self.terms
        wanted = np.array(list(terms), np.uint64)
        at = hashes[:-1].searchsorted(wanted)
        after = np.minimum(at + 1, len(hashes) - 1)
        ends = starts[np.where(hashes[at] == wanted, after, at)]
        bounds = zip(starts[at].tolist(), ends.tolist(), strict=True)
        return [self.pairs[start:end] for start, end in bounds]

    @property
    def is_sound(self) -> bool:
        """Whether terms and starts ascend, starts cover the pairs, and all documents exist."""
        hashes, starts = self.terms
        ascending = (hashes[:-2] < hashes[1:-1]).all() and (starts[:-1] <= starts[1:]).all()
        covers_pairs = (int(starts[0]), int(starts[-1])) == (0, len(self.pairs))
        known = int(self.pairs[:, 0].max(initial=0)) < len(self.lengths)
        return bool(ascending and covers_pairs and known)

    def between(self, low: int, high: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return hash (n,) and pair (n, 2) of each posting with ``low`` <= hash <= ``high``."""
        hashes, starts = self.terms
        first = int(np.searchsorted(hashes[:-1], np.uint64(low), "left"))
        last = int(np.searchsorted(hashes[:-1], np.uint64(high), "right"))
        counts = np.diff(starts[first : last + 1]).astype(np.int64)
        pairs = self.pairs[int(starts[first]) : int(starts[last])]
        return np.repeat(hashes[first:last], counts), pairs


class Group(NamedTuple):
    """The postings of some terms, before they are joined with the postings of other terms."""

    hashes: NDArray[np.uint64]  # (n_terms,), ascending
    starts: NDArray[np.uint64]  # index in pairs of each term's first posting, (n_terms,)
    pairs: NDArray[np.uint32]  # (n_postings, 2), as in `Postings`


def count_terms(
    texts: Iterable[tuple[str, str]],
    settings: LexicalSettings,
    words: Counter[str] | None = None,
) -> Postings:
    """Count the terms of documents (title, text) in memory; add their words to ``words``."""
    reader = term_reader(settings)
    fields = [reader.terms(field, words) for document in texts for field in document]
    n_docs = len(fields) // 2
    sizes = [len(hashes) for hashes in fields]
    weights = np.tile(np.array([settings.title_weight, 1], np.uint32), n_docs)
    docs = np.repeat(np.arange(n_docs, dtype=np.uint32), 2)
    hashes = np.concatenate([np.empty(0, np.uint64), *fields])
    pairs = np.repeat(np.stack([docs, weights], axis=1), sizes, axis=0)
    counted = (hashes != STOP_WORD) & (pairs[:, 1] > 0)
    lengths = np.bincount(pairs[counted, 0], weights=pairs[counted, 1], minlength=n_docs)
    group = _grouped(hashes[counted], pairs[counted])
    return Postings(table_of_terms([group]), group.pairs, lengths.astype(np.uint32))


def table_of_terms(groups: Iterable[Group]) -> NDArray[np.uint64]:
    """Join the terms of groups into an array like `Postings.terms`; keep no pairs in memory."""
    parts, n_pairs = [], 0
    for group in groups:
        parts.append(np.stack([group.hashes, group.starts + np.uint64(n_pairs)]))
        n_pairs += len(group.pairs)
    return np.concatenate([*parts, np.array([[NO_TERM], [n_pairs]], np.uint64)], axis=1)


def merge(sources: Sequence[tuple[Postings, Live]]) -> Iterator[Group]:
    """Yield the merged postings of consecutive sets of documents, in groups of ascending hashes.

    Each step merges about `MERGE_POSTINGS` postings, so memory hardly grows with their number. Dead
    documents are left out, and the live ones are numbered again from 0.
    """
    total = sum(len(postings.pairs) for postings, _ in sources)
    bits = (total // MERGE_POSTINGS).bit_length()
    width = 1 << (64 - bits)
    new_docs = _new_documents(sources)
    for low in range(0, 1 << 64, width):
        parts = [
            _renumbered(*postings.between(low, low + width - 1), new)
            for (postings, _), new in zip(sources, new_docs, strict=True)
        ]
        hashes, pairs = (np.concatenate(part) for part in zip(*parts, strict=True))
        yield _grouped(hashes, pairs)


def merge_in_memory(sources: Sequence[tuple[Postings, Live]]) -> Postings:
    """Merge postings in memory."""
    groups = list(merge(sources))
    pairs = np.concatenate([group.pairs for group in groups])
    return Postings(table_of_terms(groups), pairs, live_lengths(sources))


def live_lengths(sources: Sequence[tuple[Postings, Live]]) -> NDArray[np.uint32]:
    """Concatenate the lengths of the live documents of all sources."""
    lengths = [p.lengths if live is None else p.lengths[live] for p, live in sources]
    return np.concatenate(lengths)


def _grouped(hashes: NDArray[np.uint64], pairs: NDArray[np.uint32]) -> Group:
    """Sort postings by term and add up the counts of equal terms and documents.

    The documents of each term must ascend; the sort is stable, so they still do.
    """
    order = np.argsort(hashes, kind="stable")
    hashes, pairs = hashes[order], pairs[order]
    is_new = np.ones(len(hashes), bool)
    is_new[1:] = hashes[1:] != hashes[:-1]
    begins = np.flatnonzero(is_new)
    is_new[1:] |= pairs[1:, 0] != pairs[:-1, 0]
    firsts = np.flatnonzero(is_new)
    if len(firsts) < len(pairs):
        counts = np.add.reduceat(pairs[:, 1], firsts, dtype=np.uint32)
        pairs = np.stack([pairs[firsts, 0], counts], axis=1)
    starts = np.searchsorted(firsts, begins).astype(np.uint64)
    return Group(hashes[begins], starts, pairs)


def _new_documents(sources: Sequence[tuple[Postings, Live]]) -> list[NDArray[np.uint32]]:
    """Number the live documents of all sources consecutively; `_DEAD` for dead ones."""
    numbers, first = [], 0
    for postings, live in sources:
        marks = np.ones(len(postings.lengths), bool) if live is None else live
        new = np.cumsum(marks, dtype=np.uint32) - np.uint32(1) + np.uint32(first)
        new[~marks] = _DEAD
        first += int(marks.sum())
        numbers.append(new)
    return numbers


def _renumbered(
    hashes: NDArray[np.uint64], pairs: NDArray[np.uint32], new: NDArray[np.uint32]
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    docs = new[pairs[:, 0]]
    live = docs != _DEAD
    return hashes[live], np.stack([docs[live], pairs[live, 1]], axis=1)


SLICE_DOCS = 65_536  # largest number of documents whose terms are counted in memory at a time
SLICE_CHARS = 16 << 20  # a slice of documents ends when its texts have this many characters

Sources = Sequence[tuple[Postings, Live]]


class LexicalFiles:
    """The posting files of a segment.

    The constructor maps the files and checks their sizes; the hashes are checked at the first use.
    FileNotFoundError if one is gone, for example after a compaction by another process. A search
    works without the list of words, so `words_problem` keeps why it cannot be opened.
    """

    def __init__(self, folder: Folder, record: LexicalRecord, n_docs: int) -> None:
        self.record, self._n_docs = record, n_docs
        self._views = [open_checked(folder, file, hash_up_to=0) for file in record.postings]
        self._words: memoryview | None = None
        self.words_problem: Exception | None = None
        if record.words:
            try:
                self._words = open_checked(folder, record.words, hash_up_to=0)
            except (CorruptIndex, FileNotFoundError) as error:  # a search works without it
                self.words_problem = error

    @cached_property
    def postings(self) -> Postings:
        """The postings, as mapped arrays."""
        record = self.record
        for file, view in zip(record.postings, self._views, strict=True):
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

    @cached_property
    def words(self) -> WordList | None:
        """The list of words, as mapped Arrow arrays; None: the segment has no such file."""
        record = self.record.words
        if record is None:
            return None
        if self._words is not None:
            return read_words(self._words, record)
        raise CorruptIndex(record.name, "the file", str(self.words_problem), REMAKE)


def write_lexical(
    work: Transaction,
    sources: Sources,
    words: Sequence[WordList] | None = None,
    settings: LexicalSettings | None = None,
) -> LexicalRecord:
    """Merge the postings of the live documents of some sources into files, in bounded memory.

    ``words`` has the list of words of each source; None: write no list. With ``settings``, words
    that no live document contains are left out.
    """
    number = work.new_number()
    n_pairs = sum(_n_live(postings, live) for postings, live in sources)
    with work.new_file(f"lex/{number:06d}.pairs.npy") as pairs:
        pairs.write(npy.header("u4", (n_pairs, 2)))
        table = table_of_terms(_written(merge(sources), pairs))
    terms = work.write_array(f"lex/{number:06d}.terms.npy", table)
    lengths = work.write_array(f"lex/{number:06d}.lengths.npy", live_lengths(sources))
    listed = None
    if words is not None:
        batches = vocabulary.merge(words)
        if settings and any(live is not None for _, live in sources):
            batches = with_terms(batches, table[0], settings)
        listed = write_words(work.new_file(f"lex/{number:06d}.words.arrow"), batches)
    return LexicalRecord(
        n_terms=table.shape[1] - 1,
        n_pairs=n_pairs,
        terms=terms,
        pairs=FileRecord.of(pairs),
        lengths=lengths,
        words=listed,
    )


def texts_of(docs: pa.Table) -> Iterator[tuple[str, str]]:
    """Read title and text of each document from the row of its first passage (chunk 0)."""
    columns = (docs.column(name).to_pylist() for name in ("chunk", "title", "text"))
    return (
        (title or "", text or "") for chunk, title, text in zip(*columns, strict=True) if chunk == 0
    )


def words_of(segment: Segment, settings: LexicalSettings) -> WordList:
    """Count the words of all documents of a segment in memory, including dead documents."""
    counted: Counter[str] = Counter()
    for _ in count_segment(segment, settings, counted):
        pass
    return WordList.of(counted)


def count_segment(
    segment: Segment, settings: LexicalSettings, counted: Counter[str] | None = None
) -> Iterator[Postings]:
    """Count the terms and words of a segment with its dead documents, slice by slice."""
    texts: list[tuple[str, str]] = []
    n_chars = 0
    for document in read_documents(segment, None):
        texts.append((document.title, document.text))
        n_chars += len(document.title) + len(document.text)
        if len(texts) == SLICE_DOCS or n_chars >= SLICE_CHARS:
            yield count_terms(texts, settings, counted)
            texts, n_chars = [], 0
    if texts:
        yield count_terms(texts, settings, counted)


def with_lexical(work: Transaction, new: Manifest, *, words: bool = True) -> Manifest:
    """Return a manifest in which every segment has postings, if the index has lexical settings.

    With ``words``, segments that an older version wrote without a list of words are written again;
    small segments need no list.
    """
    if new.lexical is None:
        return new
    segments = []
    committed = set(work.old.files)
    for record in new.segments:
        lacks_words = words and lists_words(record.n_docs)
        if record.lexical is None or (lacks_words and record.lexical.words is None):
            segment = Segment(work.folder, record, new)
            segment.verify(vectors=False)  # else the postings of damaged documents would look sound
            before = record.lexical.files if record.lexical else ()
            record = record.with_lexical(_make(work, segment, new.lexical))
            alone = (file for file in before if file.on_disk == file.name)  # not in a pack
            work.remove(file.name for file in alone if file not in committed)
        segments.append(record)
    return replace(new, segments=tuple(segments))


def _make(work: Transaction, segment: Segment, settings: LexicalSettings) -> LexicalRecord:
    counted: Counter[str] = Counter()
    parts = []
    listed = lists_words(segment.record.n_docs)
    for postings in count_segment(segment, settings, counted if listed else None):
        words = [WordList.of(counted)] if listed else None
        part = write_lexical(work, [(postings, None)], words)
        parts.append((part, len(postings.lengths)))
        counted.clear()
    if len(parts) == 1:
        return parts[0][0]
    opened = [LexicalFiles(work.folder, part, n_docs) for part, n_docs in parts]
    lists = [file.words for file in opened if file.words] if listed else None
    sources = [(file.postings, None) for file in opened]
    whole = write_lexical(work, sources, lists)
    work.remove(file.name for part, _ in parts for file in part.files)
    return whole


def _written(groups: Iterable[Group], file: files.NewFile) -> Iterator[Group]:
    for group in groups:
        if len(group.pairs):  # no term may have a hash in the range of a group
            file.write(np.ascontiguousarray(group.pairs))
        yield group


def _n_live(postings: Postings, live: Live) -> int:
    """Count the postings of live documents, block by block to bound the memory."""
    if live is None:
        return len(postings.pairs)
    docs, step = postings.pairs[:, 0], 1 << 22
    return sum(int(live[docs[i : i + step]].sum()) for i in range(0, len(docs), step))
