"""The words of an index and how often each occurs: near words, and the files of words.

The postings for BM25 hold hashes of stems, from which words cannot be recovered. So the words are
listed in separate files, for fuzzy search and for suggestions.

An edit inserts, deletes or replaces a character, or swaps two neighbours; no part of a word is
edited twice (the optimal string alignment distance).

Source: Damerau 1964, A technique for computer detection and correction of spelling errors.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.errors import CorruptIndex
from sbert_search.index.lexical.analyzer import (
    MARK,
    STOP_WORD,
    is_unspaced,
    marks_alike,
    term_reader,
)
from sbert_search.index.settings import NO_LANGUAGE, LexicalSettings
from sbert_search.index.storage.manifest import FileRecord
from sbert_search.index.storage.segments import REMAKE, check_hash


class Characters(NamedTuple):
    """The characters of some words, none of them empty, one word after the other."""

    codes: NDArray[np.uint32]  # code points of all words, (n_chars,)
    starts: NDArray[np.int64]  # first character of each word, then n_chars; (n_words + 1,)


def code_points(text: str) -> NDArray[np.uint32]:
    """Return the code points of a text, uint32 (n_chars,)."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def within(word: str, words: Characters, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return indices (n,), ascending, and distances (n,) of words at most ``most`` edits away."""
    if len(words.starts) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    codes, lengths = code_points(word), np.diff(words.starts)
    at = np.flatnonzero(abs(lengths - len(codes)) <= most)
    # An edit removes at most one character from the set of a word's characters and adds at most
    # one. The sets are compared as 64-bit masks; few words remain for the slower exact computation.
    sets = np.bitwise_or.reduceat(_bits(words.codes), words.starts[:-1])[at]
    own = np.bitwise_or.reduce(_bits(codes))
    removed, added = np.bitwise_count(own & ~sets), np.bitwise_count(sets & ~own)
    at = at[(removed <= most) & (added <= most)]
    distances = _distances(codes, words, at, most)
    near = distances <= most
    return at[near], distances[near]


def _bits(codes: NDArray[np.uint32]) -> NDArray[np.uint64]:
    return np.uint64(1) << (codes & np.uint32(63)).astype(np.uint64)


def _distances(
    word: NDArray[np.uint32], words: Characters, at: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """Compute the distances of the words at the indices ``at``; above ``most`` they are not exact.

    The table of Levenshtein's algorithm is filled for all these words together: cell (i, j) is the
    distance of the first i characters of ``word`` from the first j of the other word. It is at
    least ``abs(i - j)``, so only cells with ``abs(i - j) <= most`` are computed.
    """
    starts = words.starts[at]
    lengths = words.starts[at + 1] - starts
    width = int(lengths.max(initial=0))
    places = np.arange(width)[:, None]
    inside = np.minimum(starts + places, max(len(words.codes) - 1, 0))
    chars = words.codes[inside]  # (width, n); characters after the end of a word have no effect
    far = most + 1
    before_last = last = np.full((width + 1, len(at)), far)
    last[: most + 1] = np.arange(width + 1)[: most + 1, None]
    for i in range(1, len(word) + 1):
        row = np.full((width + 1, len(at)), far)
        if i <= most:
            row[0] = i
        for j in range(max(1, i - most), min(width, i + most) + 1):
            same = chars[j - 1] == word[i - 1]
            best = np.minimum(np.minimum(last[j], row[j - 1]) + 1, last[j - 1] + ~same)
            if i > 1 and j > 1:
                swapped = (chars[j - 1] == word[i - 2]) & (chars[j - 2] == word[i - 1])
                best = np.where(swapped, np.minimum(best, before_last[j - 2] + 1), best)
            row[j] = best
        before_last, last = last, row
    distances: NDArray[np.int64] = last[lengths, np.arange(len(at))]
    return distances


BATCH_WORDS = 65_536  # largest number of words in one Arrow batch
SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])

# Words with digits are not listed: 2019 and 2018 differ by one edit but mean different things, and
# identifiers would fill the list. Words of fewer than 3 or more than 64 characters are not listed
# either, since their spelling is not corrected, nor are pairs of letters of scripts without blanks.
_LISTED = re.compile(rf"^(?:[^\W\d]|{MARK}){{3,64}}$", re.MULTILINE)


def listed(words: Iterable[str]) -> list[str]:
    """Return the lower-case words that are listed: of 3 to 64 characters and no decimal digit."""
    lines = "\n".join(words)
    found = [lines[slice(*match.span())] for match in _LISTED.finditer(marks_alike(lines))]
    return [word for word in found if not is_unspaced(word)] if is_unspaced(lines) else found


def is_listed(word: str) -> bool:
    """Whether a lower-case word is `listed`."""
    return listed([word]) == [word]


class WordList:
    """Words of some documents, ascending, with counts: nonempty batches of `SCHEMA`."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.batches = batches

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> WordList:
        """Make a list of the words that are `listed`, from words and their counts."""
        words = sorted(listed(counts))
        starts = range(0, len(words), BATCH_WORDS)
        return cls([_batch(words[i : i + BATCH_WORDS], counts) for i in starts])

    def near(
        self, word: str, most: int, language: str = NO_LANGUAGE
    ) -> Iterator[tuple[str, int, int]]:
        """Yield words with the same first character within ``most`` edits, with edits and count."""
        is_german = language == "german"
        word = _umlauts_alike(word) if is_german else word
        initials = _UMLAUTS.get(word[0], "") if is_german else ""
        for batch, initial in product(self.batches, word[0] + initials):
            words, counts = batch.columns
            first, stop = (
                find(range(len(words)), initial, key=lambda i: words[i].as_py()[0])
                for find in (bisect_left, bisect_right)
            )
            some = words.slice(first, stop - first)
            at, distances = within(word, _characters(some, is_german), most)
            for i, distance in zip(at.tolist(), distances.tolist(), strict=True):
                yield some[i].as_py(), distance, int(counts[first + i].as_py())


_UMLAUTS = {"a": "ä", "o": "ö", "u": "ü"}


def _umlauts_alike(text: str) -> str:
    """Spell ä, ae and a alike, as Snowball's stemmer of German does, and so ö, ü and ß."""
    for letter, umlaut in _UMLAUTS.items():
        text = text.replace(letter + "e", letter).replace(umlaut, letter)
    return text.replace("ß", "ss")


@dataclass(frozen=True, slots=True)
class NearWord:
    """A word of the index near a given word, with the edits between them and its count."""

    word: str
    edits: int
    count: int


class Vocabulary:
    """The words of all segments of an index.

    Words of deleted documents stay in the list of a segment until the segment is rewritten.
    """

    def __init__(self, lists: Sequence[WordList], language: str = NO_LANGUAGE) -> None:
        self._lists, self._language = lists, language

    def has(self, word: str) -> bool:
        """Whether a document has a lower-case word in this form."""
        return any(True for words in self._lists for _ in words.near(word, 0))

    def near(self, word: str, most: int) -> list[NearWord]:
        """Find the words within some edits of a lower-case word, without the word itself.

        The nearest come first, and then the most frequent. The first character must be the same:
        few errors change it, and so only a fifteenth of the words is compared. At most one edit is
        allowed for words of three to five characters, and two for longer ones. A word that
        `is_listed` refuses has no near words. In German, other spellings of an umlaut are no edit.
        """
        most = min(most, 1 if len(word) < 6 else 2)
        if not is_listed(word) or most < 1:
            return []
        counts: Counter[tuple[int, str]] = Counter()
        for words in self._lists:
            for other, edits, count in words.near(word, most, self._language):
                counts[edits, other] += count
        ordered = sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
        return [NearWord(other, edits, count) for (edits, other), count in ordered if edits]


def merge(lists: Sequence[WordList]) -> Iterator[pa.RecordBatch]:
    """Merge lists of words and add up counts, one batch of each in memory; the words ascend."""
    waiting = [list(words.batches) for words in lists if words.batches]
    while waiting:
        # The words of a list ascend. So the first batches of the lists hold all words up to
        # ``bound``, the smallest of the last words of these batches.
        bound = min(batches[0].column(0)[-1].as_py() for batches in waiting)
        parts = []
        for batches in waiting:
            words = batches[0].column(0)
            end = bisect_right(range(len(words)), bound, key=lambda i: words[i].as_py())
            parts.append(batches[0].slice(0, end))
            batches[0] = batches[0].slice(end)
            if not batches[0].num_rows:
                del batches[0]
        waiting = [batches for batches in waiting if batches]
        table = pa.Table.from_batches(parts, SCHEMA)
        sums = table.group_by("word", use_threads=False).aggregate([("count", "sum")])
        ordered = sums.sort_by("word")
        columns = [ordered.column("word"), ordered.column("count_sum")]
        yield from pa.table(columns, SCHEMA).combine_chunks().to_batches()


def _batch(words: Sequence[str], counts: Mapping[str, int]) -> pa.RecordBatch:
    """Make a batch of words and counts from buffers, since `pyarrow.array` would import pandas."""
    coded = [word.encode() for word in words]
    offsets = np.cumsum([0, *map(len, coded)], dtype=np.int32)
    numbers = np.array([counts[word] for word in words], np.int64)
    texts, starts, sums = map(pa.py_buffer, (b"".join(coded), offsets, numbers))
    n = len(words)
    columns = [
        pa.StringArray.from_buffers(n, starts, texts),
        pa.Int64Array.from_buffers(pa.int64(), n, [None, sums]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _characters(words: pa.StringArray, is_german: bool) -> Characters:
    offsets, text = words.buffers()[1:]
    if not len(words):
        return Characters(np.empty(0, np.uint32), np.zeros(1, np.int64))
    if is_german:
        spelt = _umlauts_alike("\n".join(words.to_pylist())).split("\n")
        starts = np.cumsum([0, *map(len, spelt)], dtype=np.int64)
        return Characters(code_points("".join(spelt)), starts)
    bounds = np.frombuffer(offsets, np.int32)[words.offset : words.offset + len(words) + 1]
    first, last = int(bounds[0]), int(bounds[-1])
    raw = np.frombuffer(text, np.uint8)[first:last]
    codes = code_points(str(raw.data, "utf-8"))
    starts = (bounds - first).astype(np.int64)
    if len(codes) < len(raw):  # if characters have several bytes, their first bytes are counted
        begun = np.cumsum(np.concatenate([[0], (raw & 0xC0) != 0x80]))
        starts = begun[starts]
    return Characters(codes, starts)


LISTED_FROM = 256  # smallest number of documents of a segment with a file of words


def lists_words(n_docs: int) -> bool:
    """Whether a segment has a file of words; those of a small segment are read from its texts.

    One more file, which a commit has to sync to the disk, would slow the commit of few documents.
    """
    return n_docs >= LISTED_FROM


def read_words(view: memoryview, record: FileRecord) -> WordList:
    """Map a file of words, and check it."""
    check_hash(view, record)
    try:
        reader = pa.ipc.open_file(pa.py_buffer(view))
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptIndex(record.name, "a sound Arrow file", str(error), REMAKE) from error
    return WordList(batches)


def write_words(file: files.NewFile, batches: Iterable[pa.RecordBatch]) -> FileRecord:
    """Write ascending words with counts to a file, in batches of `BATCH_WORDS` words."""
    from sbert_search.index.storage.segment_writer import BatchWriter

    with file:
        writer = BatchWriter(file, SCHEMA, BATCH_WORDS)
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]))
        writer.close()
    return FileRecord.of(file)


def with_terms(
    batches: Iterable[pa.RecordBatch], terms: NDArray[np.uint64], settings: LexicalSettings
) -> Iterator[pa.RecordBatch]:
    """Keep the words whose term hashes are among ``terms``, and stop words, which have no term."""
    reader = term_reader(settings)
    known = np.append(terms, np.uint64(STOP_WORD))
    for batch in batches:
        hashes = reader.hashes(batch.column(0).to_pylist())
        yield batch.filter(pa.array(np.isin(hashes, known)))
