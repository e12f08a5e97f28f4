"""The words of an index and how often each occurs, and the words near (similar to) a given word.

The postings for BM25 hold hashes of stems, from which words cannot be recovered. So the words
themselves are listed in separate files, for fuzzy search and for suggestions.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.index.lexical import edit_distance
from sbert_search.index.lexical.edit_distance import Characters
from sbert_search.index.lexical.words import MARK, marks_alike

BATCH_WORDS = 65_536  # largest number of words in one Arrow batch
SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])

# Words with digits are not listed: 2019 and 2018 differ by one edit but mean different things, and
# identifiers would fill the list. Words of fewer than 3 or more than 64 characters are not listed
# either, since their spelling is not corrected.
_LISTED = re.compile(rf"(?:[^\W\d]|{MARK}){{3,64}}")


def is_listed(word: str) -> bool:
    """Whether a lower-case word is listed: it has 3 to 64 characters and no decimal digit."""
    return _LISTED.fullmatch(marks_alike(word)) is not None


class WordList:
    """Words of some documents in ascending order, with counts.

    Args:
        batches: Arrow batches of `SCHEMA`, each with at least one word.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.batches = batches

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> WordList:
        """Make a list of the words that `is_listed` accepts, from words and their counts."""
        words = sorted(filter(is_listed, counts))
        starts = range(0, len(words), BATCH_WORDS)
        return cls([_batch(words[i : i + BATCH_WORDS], counts) for i in starts])

    def count(self, word: str) -> int:
        """Return the number of occurrences of a word."""
        for batch in self.batches:
            words, counts = batch.columns
            at = bisect_left(range(len(words)), word, key=lambda i: words[i].as_py())
            if at < len(words):
                return int(counts[at].as_py()) if words[at].as_py() == word else 0
        return 0

    def near(self, word: str, most: int) -> Iterator[tuple[str, int, int]]:
        """Find the words with the first character of ``word`` and at most ``most`` edits from it.

        Yields:
            Each such word, its number of edits and its count.
        """
        for batch in self.batches:
            words, counts = batch.columns
            first, stop = (
                find(range(len(words)), word[0], key=lambda i: words[i].as_py()[0])
                for find in (bisect_left, bisect_right)
            )
            some = words.slice(first, stop - first)
            at, distances = edit_distance.within(word, _characters(some), most)
            for i, distance in zip(at.tolist(), distances.tolist(), strict=True):
                yield some[i].as_py(), distance, int(counts[first + i].as_py())


@dataclass(frozen=True, slots=True)
class NearWord:
    """A word of the index near a given word, with the edits between them and its count."""

    word: str
    edits: int
    count: int


class Vocabulary:
    """The words of all segments (parts) of an index.

    Words of deleted documents stay in the list of a segment until the segment is rewritten.

    Args:
        lists: The list of words of each segment.
    """

    def __init__(self, lists: Sequence[WordList]) -> None:
        self._lists = lists

    def count(self, word: str) -> int:
        """Return the number of occurrences of a word in lower case."""
        return sum(words.count(word) for words in self._lists)

    def near(self, word: str, most: int) -> list[NearWord]:
        """Find the words within some edits of a word, without the word itself.

        The first character must be the same. Few spelling errors change it, and thus only about a
        fifteenth of the words is compared. At most one edit is allowed for words of three to five
        characters, and at most two for longer words. A word that `is_listed` refuses has no near
        words.

        Args:
            word: A word in lower case.
            most: Largest number of edits.

        Returns:
            The words, nearest first, and the most frequent first among equally near ones.
        """
        most = min(most, 1 if len(word) < 6 else 2)
        if not is_listed(word) or most < 1:
            return []
        counts: Counter[tuple[int, str]] = Counter()
        for words in self._lists:
            for other, edits, count in words.near(word, most):
                counts[edits, other] += count
        ordered = sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
        return [NearWord(other, edits, count) for (edits, other), count in ordered if edits]


def merge(lists: Sequence[WordList]) -> Iterator[pa.RecordBatch]:
    """Merge lists of words and add up the counts, holding one batch of each list in memory.

    Yields:
        Batches of `SCHEMA`; the words ascend over all batches. Some batches are small.
    """
    waiting = [list(words.batches) for words in lists if words.batches]
    while waiting:
        # The words of a list ascend. So the first batches of the lists hold all words up to
        # ``bound``, the smallest of the last words of these batches.
        bound = min(batches[0].column(0)[-1].as_py() for batches in waiting)
        parts = []
        for batches in waiting:
            words = batches[0].column(0)
            end = _words_up_to(words, bound)
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


def _words_up_to(words: pa.StringArray, last: str) -> int:
    return bisect_right(range(len(words)), last, key=lambda i: words[i].as_py())


def _characters(words: pa.StringArray) -> Characters:
    """Decode the words of a validated array to code points."""
    offsets, text = words.buffers()[1:]
    if not len(words):
        return Characters(np.empty(0, np.uint32), np.zeros(1, np.int64))
    bounds = np.frombuffer(offsets, np.int32)[words.offset : words.offset + len(words) + 1]
    first, last = int(bounds[0]), int(bounds[-1])
    raw = np.frombuffer(text, np.uint8)[first:last]
    codes = edit_distance.code_points(str(raw.data, "utf-8"))
    starts: NDArray[np.int64] = (bounds - first).astype(np.int64)
    if len(codes) < len(raw):  # if characters have several bytes, their first bytes are counted
        begun = np.cumsum(np.concatenate([[0], (raw & 0xC0) != 0x80]))
        starts = begun[starts]
    return Characters(codes, starts)
