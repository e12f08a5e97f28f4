"""Frozen dataclasses that the subpackages exchange: documents, queries, hits, pairs, triplets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from sys import getsizeof
from types import MappingProxyType
from typing import TypeAlias

ScalarValue = str | int | float | bool | datetime | date
MetadataValue = ScalarValue | Sequence[ScalarValue] | None
Where: TypeAlias = str | tuple[str, Sequence[object]] | Mapping[str, object]
"""A filter: a condition, a condition with ``?`` and their values, or a mapping of columns."""

_RECORD_BYTES, _VALUE_BYTES = 512, 64  # memory overhead of a record, and of one metadata value

PAGE_MARK = "#page="  # in the id of a PDF page, between the path of the file and the page number
_SHOWN_CHARS = 60  # characters of title and text in the `repr` of a hit

NO_METADATA: Mapping[str, MetadataValue] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus.

    Attributes:
        doc_id: The user's id, unique in an index.
        text: The body; may be empty if there is a title.
        title: The title, or "".
        metadata: Typed values by column name; search filters can use them.
        source: Where the document was read: ``file:line`` or ``file:row group 3:row 17``. If a
            partial update has changed a document that is a file or a page, the hash of the file
            follows.
        fingerprint: For a document that is a whole file, or a page of a PDF: a hash computed from
            the bytes of the file. An index compares this hash and not the document, so a file
            counts as unchanged if only its modification time has changed. None: the document is a
            row of a file, or was given in memory.

    Example:
        >>> Document("mill", "A river turns the wheel.", metadata={"year": 1850}).title
        ''
    """

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, MetadataValue] = field(default_factory=lambda: NO_METADATA)
    source: str = ""
    fingerprint: int | None = None

    @property
    def full_text(self) -> str:
        """The text to embed: ``title + " " + text``, or whichever of the two is not empty."""
        return f"{self.title} {self.text}" if self.title and self.text else self.title or self.text

    @property
    def held_bytes(self) -> int:
        """Estimated memory of this record, in bytes."""
        taken = _RECORD_BYTES + getsizeof(self.title) + getsizeof(self.text)
        if self.metadata:
            taken += _VALUE_BYTES * len(self.metadata)
            taken += sum(map(_value_bytes, self.metadata.values()))
        return taken


def _value_bytes(value: MetadataValue) -> int:
    if isinstance(value, (list, tuple)):
        return getsizeof(value) + sum(map(getsizeof, value))
    return getsizeof(value)


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a batch or of a retrieval task.

    Example:
        >>> Query("q1", "what turns a wheel?").text
        'what turns a wheel?'
    """

    query_id: str
    text: str


@dataclass(frozen=True, slots=True)
class StageScore:
    """Rank (from 1) and score of a hit in one stage of a search.

    The stages are dense, lexical, fused, boost, mmr and rerank. The rank is None in hybrid search,
    if the stage does not rank the document among its best `Fusion.depth`.

    Example:
        >>> hit = SearchEngine("my.index").search("river", mode="hybrid")[0]
        >>> hit.stages["lexical"].rank
        1
    """

    rank: int | None
    score: float


@dataclass(frozen=True, slots=True)
class HitAnswer:
    """The answer to the query in a hit.

    Attributes:
        text: The answer.
        start: Index of the first character of the answer in `Hit.text`.
        end: Index after the last character of the answer.
        score: Probability of the answer, from 0 to 1, by the model that answers questions.

    Example:
        >>> answer = HitAnswer("river", start=2, end=7, score=0.9)
        >>> "A river turns the wheel."[answer.start : answer.end]
        'river'
    """

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True, repr=False)
class Hit:
    """One document of a search result.

    Attributes:
        rank: Position in the result, from 1.
        doc_id: The user's id.
        score: The score that results are sorted by; higher is better.
        text: The document's text (not its title). Of a document with several passages, it is only
            the text of the best passage, unless the search has ``full_text=True``.
        title: The document's title, or "".
        metadata: The document's metadata values by column name.
        row: Row of the document's best passage in the index.
        passage: The text of the best passage, with the title if the passage contains the title.
            This is the text to give to a language model.
        chunk: Number of the best passage in the document, from 0.
        span: Start and end of the best passage in ``Document.full_text``, in characters.
        best_sentence: The sentence of the best passage whose words in common with the query have
            the largest sum of inverse document frequencies. If the index has lexical data, all
            inflections of a word count as this word, and a heading in Markdown counts only if no
            other sentence has one in common. If no sentence has a word in common with the query: of
            the first four sentences, the one whose vector is nearest to the vector of the
            query. "" if no sentence was requested.
        matched_words: Words of the query that occur in the document, or in the passage with
            ``group=False``, in any inflection. In fuzzy search, also the words of the document or
            passage that matched a word of the query. Common words are listed only if no other word
            matched.
        stages: The document's rank and score by stage name, in every stage that returned it.
        answer: The answer that a model for questions found in the passage; None: it found no
            answer, or the search has no such model.

    Example:
        >>> hit = SearchEngine("my.index").search("river wheel")[0]
        >>> hit.doc_id, hit.metadata["year"]
        ('mill', 1850)
    """

    rank: int
    doc_id: str
    score: float
    text: str
    title: str = ""
    metadata: Mapping[str, MetadataValue] = field(default_factory=lambda: NO_METADATA)
    row: int = -1
    passage: str = ""
    chunk: int = 0
    span: tuple[int, int] = (0, 0)
    best_sentence: str = ""
    matched_words: tuple[str, ...] = ()
    stages: Mapping[str, StageScore] = field(default_factory=dict)
    answer: HitAnswer | None = None

    def __repr__(self) -> str:
        """Show rank, score, id and the start of title and text on one line."""
        shown = (
            f"{self.title}: {self.text}" if self.title and self.text else self.title or self.text
        )
        start = " ".join(shown[: 4 * _SHOWN_CHARS].split())
        cut = len(start) > _SHOWN_CHARS or len(shown) > 4 * _SHOWN_CHARS
        start = f"{start[:_SHOWN_CHARS]}..." if cut else start
        return f"<Hit {self.rank}: {self.score:.4f} {self.doc_id!r:.40} {start!r}>"


Qrels = Mapping[str, Mapping[str, int]]
"""``qrels[query_id][doc_id]`` is a relevance grade."""

Run = Mapping[str, Mapping[str, float]]
"""``run[query_id][doc_id]`` is a score; results are sorted by descending score."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Number of input rows by outcome; the four outcomes add up to the rows read.

    Attributes:
        indexed: Rows with an id that the index did not hold.
        replaced: Rows that replaced a document of the same id and other content.
        duplicate: Rows whose id the index already holds with the same content; nothing was done.
        rejected: Rows that could not be read. If rows may not replace documents, also rows whose
            id the index holds with other content.

    Example:
        >>> RowCounts(indexed=3, replaced=1).read
        4
    """

    indexed: int = 0
    replaced: int = 0
    duplicate: int = 0
    rejected: int = 0

    @property
    def read(self) -> int:
        """Rows read."""
        return self.indexed + self.replaced + self.duplicate + self.rejected

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            self.indexed + other.indexed,
            self.replaced + other.replaced,
            self.duplicate + other.duplicate,
            self.rejected + other.rejected,
        )
