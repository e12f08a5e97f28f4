"""Postings: for each term, the documents that contain it; their files, read and merged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, count
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


MERGE_POSTINGS = 1 << 20  # approximate number of postings that a merge holds at a time
NO_TERM = np.uint64(2**64 - 1)  # end mark after the last hash
MAX_COUNT_BITS = 16  # of the 32 bits of a posting

_DEAD = np.uint32(2**32 - 1)  # new number of a document that is dropped

Live = NDArray[np.bool_] | None
"""Which documents or rows of a segment are neither deleted nor replaced, bool (n,); None: all."""


def count_bits(n_docs: int) -> int:
    """Return the number of low bits of a posting that hold the count; the others the document."""
    return min(MAX_COUNT_BITS, 32 - max(n_docs - 1, 0).bit_length())


class Postings(NamedTuple):
    """The postings of some documents, which are numbered from 0.

    The last column of ``terms`` is `NO_TERM` and the number of postings. Each occurrence in a title
    counts ``LexicalSettings.title_weight`` times. The low `count_bits` of a posting are 0 if its
    count has more bits and is in ``large``.
    """

    # (2, n_terms + 1): hash of each term, ascending, and its first posting
    terms: NDArray[np.uint64]
    pairs: NDArray[np.uint32]  # (n_postings,): document and count, by term, then document
    large: NDArray[np.uint64]  # (2, n_large): index in pairs, ascending, and count
    lengths: NDArray[np.uint32]  # (n_docs,): sum of the counts of each document

    @classmethod
    def of_blank(cls, n_docs: int) -> Postings:
        """Make the postings of documents that contain no term."""
        return _joined([], np.zeros(n_docs, np.uint32))

    @property
    def bits(self) -> int:
        """The `count_bits` of the postings."""
        return count_bits(len(self.lengths))

    def of(self, terms: Iterable[int]) -> list[range]:
        """Return where in ``pairs`` each term is; the range is empty if no document contains it."""
        hashes, starts = self.terms
        wanted = np.array(list(terms), np.uint64)
        at = hashes[:-1].searchsorted(wanted)
        after = np.minimum(at + 1, len(hashes) - 1)
        ends = starts[np.where(hashes[at] == wanted, after, at)]
        return list(map(range, starts[at].tolist(), ends.tolist()))

    def docs(self, span: range) -> NDArray[np.uint32]:
        """Return the documents of a term, ascending, uint32 (n,)."""
        return self.pairs[span.start : span.stop] >> np.uint32(self.bits)

    def read(self, spans: Sequence[range]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the documents and counts of some terms, each (n,), one term after the other."""
        parts = [self.pairs[span.start : span.stop] for span in spans]
        pairs = parts[0] if len(parts) == 1 else np.concatenate(parts)
        counts = self.counts(pairs, lambda: np.concatenate(list(map(_places, spans))))
        return (pairs >> np.uint32(self.bits)).astype(np.int64), counts

    def counts(
        self, pairs: NDArray[np.uint32], places: Callable[[], NDArray[np.int64]]
    ) -> NDArray[np.float64]:
        """Return the counts of some pairs, (n,); ``places`` finds their indices, (n,)."""
        counts = (pairs & np.uint32((1 << self.bits) - 1)).astype(np.float64)
        if self.large.shape[1]:
            at = np.flatnonzero(counts == 0)
            known = self.large[0].searchsorted(places()[at].astype(np.uint64))
            counts[at] = self.large[1].take(known, mode="clip")
        return counts

    @property
    def is_sound(self) -> bool:
        """Whether terms and starts ascend, starts cover the pairs, and all documents exist."""
        hashes, starts = self.terms
        ascending = (hashes[:-2] < hashes[1:-1]).all() and (starts[:-1] <= starts[1:]).all()
        covers_pairs = (int(starts[0]), int(starts[-1])) == (0, len(self.pairs))
        known = int(self.pairs.max(initial=0)) >> self.bits < len(self.lengths)
        return bool(ascending and covers_pairs and known and self._has_sound_large)

    @property
    def _has_sound_large(self) -> bool:
        places = self.large[0]
        if not len(places):
            return True
        if not (places[:-1] < places[1:]).all() or int(places[-1]) >= len(self.pairs):
            return False
        mask = np.uint32((1 << self.bits) - 1)
        return not (self.pairs[places] & mask).any() and bool((self.large[1] > mask).all())


class Group(NamedTuple):
    """The postings of some terms, before they are joined with the postings of other terms."""

    hashes: NDArray[np.uint64]  # (n_terms,), ascending
    starts: NDArray[np.uint64]  # index in pairs of each term's first posting, (n_terms,)
    pairs: NDArray[np.uint32]  # (n_postings,), as in `Postings`
    large: NDArray[np.uint64]  # (2, n_large), as in `Postings`


def count_terms(
    texts: Iterable[tuple[str, str]],
    settings: LexicalSettings,
    words: Counter[str] | None = None,
) -> Postings:
    """Count the terms of documents (title, text) in memory; add their words to ``words``."""
    reader = term_reader(settings)
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # of words, in order of use
    sizes: list[int] = []  # number of words of each title and each text

    def read() -> Iterator[list[str]]:
        for field in chain.from_iterable(texts):
            sizes.append(0)
            for found in reader.parts(field):
                sizes[-1] += len(found)
                yield found

    every = chain.from_iterable(read())
    tokens = np.fromiter(map(numbers.__getitem__, every), np.uint32)
    if words is not None:
        occurrences = np.bincount(tokens, minlength=len(numbers)).tolist()
        words.update(dict(zip(numbers, occurrences, strict=True)))
    hashes, ranks = np.unique(reader.hashes(list(numbers)), return_inverse=True)
    # One key has term, document and field, so one sort brings equal ones together.
    shift = (len(sizes) | 1).bit_length()
    keys = ranks.astype(np.int64)[tokens] << shift
    keys |= np.repeat(np.arange(len(sizes)), sizes)
    keys.sort()
    if STOP_WORD in hashes[:1]:
        keys = keys[keys.searchsorted(1 << shift) :]
    weights = np.array([settings.title_weight, 1], np.uint32)[keys & 1]
    keys >>= 1
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.add.reduceat(weights, firsts, dtype=np.uint32) if len(keys) else weights
    keys, counts = keys[firsts][counts > 0], counts[counts > 0]
    ranks, docs, n_docs = keys >> (shift - 1), keys & ((1 << (shift - 1)) - 1), len(sizes) // 2
    starts = np.flatnonzero(np.diff(ranks, prepend=-1))
    pairs, large = _packed(docs.astype(np.uint32), counts, count_bits(n_docs))
    lengths = np.bincount(docs, counts, n_docs).astype(np.uint32)
    return _joined([Group(hashes[ranks[starts]], starts.astype(np.uint64), pairs, large)], lengths)


def _places(span: range) -> NDArray[np.int64]:
    return np.arange(span.start, span.stop)


def _packed(
    docs: NDArray[np.uint32], counts: NDArray[np.uint32], bits: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Return ``pairs`` and ``large`` of `Postings`, given documents and counts."""
    at = np.flatnonzero(counts >> np.uint32(bits))
    large = np.stack([at, counts[at]]).astype(np.uint64)
    pairs = docs << np.uint32(bits)
    pairs |= counts
    pairs[at] = docs[at] << np.uint32(bits)
    return pairs, large


def tables_of(groups: Iterable[Group]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Join ``terms`` and ``large`` of groups, as in `Postings`; keep no pairs in memory."""
    terms, large, n_pairs = [], [np.empty((2, 0), np.uint64)], np.uint64(0)
    for group in groups:
        terms.append(np.stack([group.hashes, group.starts + n_pairs]))
        large.append(group.large + np.array([[n_pairs], [0]], np.uint64))
        n_pairs += np.uint64(len(group.pairs))
    end = np.array([[NO_TERM], [n_pairs]], np.uint64)
    return np.concatenate([*terms, end], axis=1), np.concatenate(large, axis=1)


def _joined(groups: Sequence[Group], lengths: NDArray[np.uint32]) -> Postings:
    pairs = np.concatenate([np.empty(0, np.uint32), *(group.pairs for group in groups)])
    terms, large = tables_of(groups)
    return Postings(terms, pairs, large, lengths)


def merge(sources: Sequence[tuple[Postings, Live]]) -> Iterator[Group]:
    """Yield the merged postings of consecutive sets of documents, in groups of ascending hashes.

    Each step merges about `MERGE_POSTINGS` postings, so memory hardly grows with their number. Dead
    documents are left out, and the live ones are numbered again from 0.
    """
    if len(sources) == 1 and sources[0][1] is None:
        ((terms, pairs, large, _), _) = sources[0]
        yield Group(terms[0, :-1], terms[1, :-1], pairs, large)
        return
    total = sum(len(postings.pairs) for postings, _ in sources)
    bits = (total // MERGE_POSTINGS).bit_length()
    width = 1 << (64 - bits)
    new_docs, n_docs = _new_documents(sources)
    for low in range(0, 1 << 64, width):
        parts = [
            _renumbered(postings, new, low, low + width - 1)
            for (postings, _), new in zip(sources, new_docs, strict=True)
        ]
        hashes, sizes, docs, counts = map(np.concatenate, zip(*parts, strict=True))
        yield _merged(hashes, sizes, docs, counts, count_bits(n_docs))


def merge_in_memory(sources: Sequence[tuple[Postings, Live]]) -> Postings:
    """Merge postings in memory."""
    return _joined(list(merge(sources)), live_lengths(sources))


def live_lengths(sources: Sequence[tuple[Postings, Live]]) -> NDArray[np.uint32]:
    """Concatenate the lengths of the live documents of all sources."""
    lengths = [p.lengths if live is None else p.lengths[live] for p, live in sources]
    return np.concatenate(lengths)


def _new_documents(
    sources: Sequence[tuple[Postings, Live]],
) -> tuple[list[NDArray[np.uint32]], int]:
    """Number the live documents of all sources; `_DEAD` for dead ones. Return their number too."""
    numbers, first = [], 0
    for postings, live in sources:
        marks = np.ones(len(postings.lengths), bool) if live is None else live
        new = np.cumsum(marks, dtype=np.uint32) - np.uint32(1) + np.uint32(first)
        new[~marks] = _DEAD
        first += int(marks.sum())
        numbers.append(new)
    return numbers, first


def _renumbered(
    postings: Postings, new: NDArray[np.uint32], low: int, high: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the live postings with ``low`` <= hash <= ``high``, whose documents get new numbers.

    They are hash and number of postings of each term, each (n_terms,), and document and count of
    each posting, each (n,).
    """
    hashes, starts = postings.terms
    first = int(np.searchsorted(hashes[:-1], np.uint64(low), "left"))
    last = int(np.searchsorted(hashes[:-1], np.uint64(high), "right"))
    starts = starts[first : last + 1].astype(np.int64)
    begin, end = int(starts[0]), int(starts[-1])
    old, found = postings.read([range(begin, end)])
    docs, counts = new[old], found.astype(np.uint32)
    live = docs != _DEAD
    kept = np.concatenate([[0], np.cumsum(live)])[starts - begin]
    sizes = np.diff(kept)
    return hashes[first:last][sizes > 0], sizes[sizes > 0], docs[live], counts[live]


def _merged(
    hashes: NDArray[np.uint64],
    sizes: NDArray[np.int64],
    docs: NDArray[np.uint32],
    counts: NDArray[np.uint32],
    bits: int,
) -> Group:
    """Bring the postings of equal hashes together; arguments as from `_renumbered`.

    Only terms are sorted; the postings of each, whose documents ascend, are moved as they are.
    """
    order = np.argsort(hashes, kind="stable")
    hashes, ends = hashes[order], np.cumsum(sizes[order])
    begins = ends - sizes[order]
    moved = np.empty_like(begins)
    moved[order] = begins
    moved -= np.cumsum(sizes) - sizes
    places = np.repeat(moved, sizes)
    places += np.arange(len(docs))
    packed, large = _packed(docs, counts, bits)
    pairs = np.empty_like(packed)
    pairs[places] = packed
    large[0] = places[large[0].astype(np.int64)]
    firsts = np.flatnonzero(np.diff(hashes, prepend=NO_TERM))
    return Group(
        hashes[firsts],
        begins[firsts].astype(np.uint64),
        pairs,
        large[:, large[0].argsort()],
    )


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
        shape = (2, record.n_terms + 1 + record.n_large)
        table = npy.read(terms, record.terms.name, "u8", shape)
        postings = Postings(
            table[:, : record.n_terms + 1],
            npy.read(pairs, record.pairs.name, "u4", (record.n_pairs,)),
            table[:, record.n_terms + 1 :],
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
        pairs.write(npy.header("u4", (n_pairs,)))
        table, large = tables_of(_written(merge(sources), pairs))
    whole = np.concatenate([table, large], axis=1)
    terms = work.write_array(f"lex/{number:06d}.terms.npy", whole)
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
        n_large=large.shape[1],
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
    for document in read_documents(segment, None, {}):
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
    n_pairs, step = len(postings.pairs), 1 << 20
    spans = (range(i, min(i + step, n_pairs)) for i in range(0, n_pairs, step))
    return sum(int(live[postings.docs(span)].sum()) for span in spans)
