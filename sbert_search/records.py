"""The records that rooms hand to each other: frozen, without behaviour beyond their own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from sys import getsizeof
from types import MappingProxyType

MetadataValue = str | int | float | bool | datetime | date | None

_RECORD_BYTES, _VALUE_BYTES = 512, 64  # beside the values: the record, and a place in a mapping

NO_METADATA: Mapping[str, MetadataValue] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus.

    Attributes:
        doc_id: The user's id, unique in an index.
        text: The body; may be empty when there is a title.
        title: A short name, or "".
        metadata: Typed columns that filters can name.
        source: Where the row was read, as ``file:line`` or ``file:row group:row``.
    """

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, MetadataValue] = field(default_factory=lambda: NO_METADATA)
    source: str = ""

    @property
    def full_text(self) -> str:
        """What is embedded: ``title + " " + text``, or the one of the two that is there."""
        return f"{self.title} {self.text}" if self.title and self.text else self.title or self.text

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that it takes, about."""
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
    """What one stage of a search (dense, lexical, fused, rerank) said of a hit."""

    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class Hit:
    """One document found, best first.

    Attributes:
        rank: From 1.
        doc_id: The user's id.
        score: The score that the order shown follows; higher is better.
        text: The document's text (not its title).
        title: The document's title, or "".
        metadata: The document's typed columns.
        row: Row of the best passage in the index.
        passage: Start and end of the best passage in ``Document.full_text``, in characters.
        best_sentence: The sentence of the passage nearest to the query, or "" if not asked for.
        matched_words: Words of the query that the document holds, in any form of the word; those
            of many documents only where no other matched.
        stages: Rank and score of every stage that saw the document, by stage name.
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
"""``run[query_id][doc_id]`` is a score; the order shown to the user is by falling score."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts with what is known of them: a score (STS), a label (NLI, relevance), or neither."""

    text1: str
    text2: str
    score: float | None = None
    label: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Triplet:
    """An anchor, a text that belongs to it and texts that do not."""

    anchor: str
    positive: str
    negatives: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class TextGroup:
    """Texts that mean the same, such as captions of one picture."""

    texts: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Where every input row ended; the four parts add up to the rows read."""

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
