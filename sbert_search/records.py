"""Records that packages exchange: documents, queries, hits, pairs. Frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from sys import getsizeof
from types import MappingProxyType

MetadataValue = str | int | float | bool | datetime | date | None

_RECORD_BYTES, _VALUE_BYTES = 512, 64  # overhead of a record, and of a value in a mapping

NO_METADATA: Mapping[str, MetadataValue] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus.

    Attributes:
        doc_id: The user's id, unique in an index.
        text: The body; may be empty if there is a title.
        title: The title, or "".
        metadata: Typed columns that filters can use.
        source: Origin of the row, as ``file:line`` or ``file:row group:row``.
    """

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, MetadataValue] = field(default_factory=lambda: NO_METADATA)
    source: str = ""

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
            taken += sum(map(getsizeof, self.metadata.values()))
        return taken


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a batch or of a retrieval task."""

    query_id: str
    text: str


@dataclass(frozen=True, slots=True)
class StageScore:
    """Rank and score of a hit in one stage of a search: dense, lexical, fused or rerank."""

    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class Hit:
    """One document of a search result.

    Attributes:
        rank: From 1.
        doc_id: The user's id.
        score: The score that results are sorted by; higher is better.
        text: The document's text (not its title).
        title: The document's title, or "".
        metadata: The document's typed columns.
        row: Row of the best passage in the index.
        passage: Start and end of the best passage in ``Document.full_text``, in characters.
        best_sentence: The sentence of the passage nearest to the query, or "" if not requested.
        matched_words: Words of the query that occur in the document, in any inflection; common
            words only if no other word matched.
        stages: Rank and score in every stage that returned the document, by stage name.
    """

    rank: int
    doc_id: str
    score: float
    text: str
    title: str = ""
    metadata: Mapping[str, MetadataValue] = field(default_factory=lambda: NO_METADATA)
    row: int = -1
    passage: tuple[int, int] = (0, 0)
    best_sentence: str = ""
    matched_words: tuple[str, ...] = ()
    stages: Mapping[str, StageScore] = field(default_factory=dict)


Qrels = Mapping[str, Mapping[str, int]]
"""``qrels[query_id][doc_id]`` is a relevance grade."""

Run = Mapping[str, Mapping[str, float]]
"""``run[query_id][doc_id]`` is a score; results are sorted by descending score."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts with a score (STS), a label (NLI, relevance), or neither."""

    text1: str
    text2: str
    score: float | None = None
    label: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Triplet:
    """An anchor, a positive text and negative texts."""

    anchor: str
    positive: str
    negatives: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class TextGroup:
    """Texts of the same meaning, such as captions of one picture."""

    texts: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Number of input rows by outcome; the four outcomes add up to the rows read."""

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
