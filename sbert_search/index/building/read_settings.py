"""How documents are read and embedded: the settings that an index keeps for its updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from sbert_search.config import require_types, to_mapping, with_fields
from sbert_search.embed.arguments import CheckedOptions
from sbert_search.embed.pipeline import OnTruncate
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError
from sbert_search.text.column_types import parse_type
from sbert_search.text.documents import CorpusReader, FieldNames, ReadBatch, Survey
from sbert_search.text.sources import TextAs
from sbert_search.text.spool import Sources
from sbert_search.text.tokens.chunking import Borders, Chunking
from sbert_search.wings import required_part

S = TypeVar("S", bound="ReadSettings")


class AddedColumns(Protocol):
    """Columns that models fill from the texts of documents."""

    @property
    def hashes(self) -> Mapping[str, str]:
        """SHA-256 of the weights of each model, by column."""

    def survey(self, survey: Survey, known: Iterable[str] = ()) -> Survey:
        """Add the columns to those of a survey; ``known`` are columns that the index has."""

    def batches(self, batches: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
        """Fill the columns of the documents of each batch."""


class NoColumns:
    """No column is filled by a model."""

    hashes: Mapping[str, str] = MappingProxyType({})

    def survey(self, survey: Survey, known: Iterable[str] = ()) -> Survey:
        """Return the survey as it is."""
        return survey

    def batches(self, batches: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
        """Return the batches as they are."""
        return batches


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadSettings:
    """How documents are read and embedded.

    Attributes:
        fields: Which fields of a row hold its id, text, title and given vector.
        metadata_fields: Names of the fields that become metadata columns; None: all others.
        column_types: Types of metadata columns: ``text``, ``int``, ``float``, ``bool``, ``date``,
            ``timestamp``, or a list of these such as ``list[text]``. Values are converted, and a
            value that does not fit makes its row a bad row. The types of other columns follow from
            their values.
        query: The SELECT statement that gives the rows of a SQLite or DuckDB file; None: the file
            has one table, which is read. The index does not keep the statement.
        on_error: Stop at the first bad row, or skip bad rows and list them.
        text_as: Whether a line or the whole file is a document, for a ``.txt`` file that is itself
            a source. None: a line, and a note says so. A ``.txt`` file in a folder is a document.
        on_truncate: What to do with texts longer than the model reads: ``warn`` cuts them,
            ``error`` stops at the first one, whatever ``on_error`` is, and ``chunk`` splits them
            into passages.
        chunk_tokens: With ``chunk``, the maximum number of tokens of a passage, special tokens and
            prompt included; longer texts are split. None: what the model reads.
        chunk_overlap: With ``chunk``, the maximum number of tokens that a passage shares with the
            passage before.
        chunk_borders: With ``chunk``, where texts are cut. ``sentences``: at the highest border in
            the second half of a passage; a heading of Markdown is higher than a paragraph, then
            come sentences, lines and words. ``words``: after the last word that fits, without
            overlap.
        classify: Name or folder of a text classifier, by the column that it fills. Updates of the
            index fill the column, too.
        tag: Name or folder of a tagger, by the column that it fills with the texts of the entities
            that it finds. It also fills a column ``COLUMN_TYPE`` for each type of entity, such as
            ``names_person``.
        predicted_by: SHA-256 of the weights of the models of ``classify`` and ``tag``, by column;
            set when an index is made.

    Raises:
        ConfigError: A field has a value of another type, a column type is unknown,
            ``column_types`` has a column that ``metadata_fields`` leaves out, ``chunk_tokens`` is
            below 2, or ``chunk_overlap`` is negative or more than half of ``chunk_tokens``.
    """

    fields: FieldNames = FieldNames()  # noqa: RUF009 (frozen)
    metadata_fields: tuple[str, ...] | list[str] | None = None
    column_types: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    on_error: Literal["stop", "skip"] = "stop"
    on_truncate: OnTruncate = "warn"
    text_as: TextAs | None = None
    chunk_tokens: int | None = None
    chunk_overlap: int = 0
    chunk_borders: Borders = "sentences"
    classify: Mapping[str, str] = field(default_factory=dict)
    tag: Mapping[str, str] = field(default_factory=dict)
    predicted_by: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_types(self)
        if self.chunk_tokens is not None and self.chunk_tokens < 2:
            raise ConfigError(f"chunk_tokens is {self.chunk_tokens}; it must be at least 2.")
        if self.chunk_overlap < 0:
            raise ConfigError(f"chunk_overlap is {self.chunk_overlap}; it must not be negative.")
        most = self.chunk_overlap if self.chunk_tokens is None else self.chunk_tokens // 2
        if self.chunk_overlap > most:
            raise ConfigError(
                f"chunk_overlap is {self.chunk_overlap}; use at most {most}, half of chunk_tokens."
            )
        types = {name: parse_type(kind) for name, kind in self.column_types.items()}
        object.__setattr__(self, "column_types", types)
        if self.metadata_fields is not None:
            object.__setattr__(self, "metadata_fields", tuple(self.metadata_fields))
            for name in types.keys() - set(self.metadata_fields):
                raise ConfigError(
                    f"column_types has {name!r}, which metadata_fields leaves out; name it in both."
                )

    def chunking(self, embedder: TextEmbedder | None) -> Chunking:
        """Return how texts are split.

        Args:
            embedder: The model, whose limit is compared with ``chunk_tokens``; None: no check.

        Raises:
            ConfigError: ``chunk_tokens`` is more than the model reads.
        """
        if embedder and self.chunk_tokens is not None and self.chunk_tokens > embedder.max_len:
            raise ConfigError(
                f"chunk_tokens is {self.chunk_tokens}, but {embedder.identity.name} reads "
                f"{embedder.max_len} tokens; use at most {embedder.max_len}."
            )
        return Chunking(self.chunk_tokens, self.chunk_overlap, self.chunk_borders)

    def stored_values(self) -> dict[str, object]:
        """Return the fields of `ReadSettings`, not of subclasses, as the index stores them."""
        names = {each.name for each in fields(ReadSettings)} - {"query"}
        return {name: value for name, value in to_mapping(self).items() if name in names}

    @property
    def predicted(self) -> AddedColumns:
        """The columns that models fill; the models are opened at the first use."""
        if not (self.classify or self.tag):
            return NoColumns()
        opened: AddedColumns = required_part("predicted columns", "A column that a model fills")(
            self.classify, self.tag, self.predicted_by
        )
        return opened


class ReadFields(TypedDict, total=False):
    """The fields of `ReadSettings` that a user may set for builds and for updates."""

    fields: FieldNames
    metadata_fields: tuple[str, ...] | list[str] | None
    column_types: Mapping[str, str]
    query: str | None
    on_error: Literal["stop", "skip"]
    on_truncate: OnTruncate
    text_as: TextAs | None
    chunk_tokens: int | None
    chunk_overlap: int
    chunk_borders: Borders


class ReadKeywords(ReadFields, CheckedOptions, total=False):
    """`ReadFields`, and options that open a model and compare it with an index."""


def split_keywords(settings: S, keywords: Mapping[str, object]) -> tuple[S, dict[str, object]]:
    """Set the fields of settings that keywords name; return settings and other keywords."""
    own = {each.name for each in fields(settings)} & keywords.keys()
    rest = {name: value for name, value in keywords.items() if name not in own}
    return with_fields(settings, {name: keywords[name] for name in own}), rest


def reader_of(settings: ReadSettings, sources: Sources, **more: Any) -> CorpusReader:
    """Return a reader of documents; ``more`` are further arguments of `CorpusReader`."""
    return CorpusReader(
        sources,
        fields=settings.fields,
        metadata_fields=settings.metadata_fields,
        column_types=settings.column_types,
        query=settings.query,
        on_error=settings.on_error,
        text_as=settings.text_as,
        **more,
    )
