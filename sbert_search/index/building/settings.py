"""Settings of reading and embedding, which an index keeps for its updates, and of a build.

The command line takes its options from here, so this module loads neither NumPy nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypedDict, TypeVar

from sbert_search.config import require_types, to_mapping, with_fields
from sbert_search.declared import Bounds, check
from sbert_search.embed.arguments import CheckedOptions, EmbedderOptions, OnTruncate
from sbert_search.errors import ConfigError
from sbert_search.index.settings import IndexSpec, LexicalSettings, Metric, VectorType
from sbert_search.text.fields import FieldNames, HtmlPart, References, TextAs
from sbert_search.wings import required_part

if TYPE_CHECKING:
    from sbert_search.embed.protocol import TextEmbedder
    from sbert_search.text.documents import CorpusReader, ReadBatch, Survey
    from sbert_search.text.formats.files import Reading
    from sbert_search.text.spool import Sources
    from sbert_search.text.tokens.chunking import Chunking

S = TypeVar("S", bound="ReadSettings")
_Names = Annotated[tuple[str, ...] | list[str] | None, Bounds(metavar="NAME,...")]
_Types = Annotated[Mapping[str, str], Bounds(metavar="NAME=TYPE,...")]
_Encoding = Annotated[str | None, Bounds(metavar="NAME")]
_Query = Annotated[str | None, Bounds(metavar="SELECT")]
_Globs = Annotated[tuple[str, ...] | list[str], Bounds(metavar="GLOB")]
_Tokens = Annotated[int | None, Bounds(2, metavar="N")]
_Overlap = Annotated[int, Bounds(0, metavar="N")]
NewColumns = Literal["add", "error"]
_Borders = Literal["sentences", "words"]
_Models = Annotated[Mapping[str, str], Bounds(metavar="MODEL=COLUMN")]


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
        metadata_fields: Fields that become metadata columns, be they also id, title or text.
            None: all others.
        column_types: Types of metadata columns: ``text``, ``int``, ``float``, ``bool``, ``date``,
            ``timestamp``, or a list of these such as ``list[text]``. Values are converted, and a
            value that does not fit makes its row a bad row. The format of texts may follow, such as
            ``date:%d.%m.%Y`` with the codes of `datetime.strptime`, or ``float:1.234,56``. The
            types of other columns follow from their values.
        new_columns: What an update does with fields for which the index has no column: ``add`` the
            columns, or ``error``, so that a misspelt name is refused. So is then a table without a
            column whose values documents would lose.
        query: Query that gives the rows of a SQLite or DuckDB file. None: the file has one table,
            which is read. The index does not keep the query.
        on_error: Treatment of bad rows; ``skip``: list them in a rejects file (``pairs``: in a
            warning), and exit with 3. ``stop``: stop at the first one.
        text_as: What a document is in a ``.txt`` file: a line, or the file. This holds for a file
            that is itself a source; a ``.txt`` file in a folder is a document. None: a line, and a
            note says so.
        encoding: Encoding of text files that are not UTF-8, such as ``cp1252`` or ``utf-16``; a
            name of Python's codecs. None: such a file, or its rows, cannot be used. A byte order
            mark and the encoding that an HTML page names take precedence.
        html: What is read of an HTML page: ``all`` that a reader sees, or the ``main`` part. That
            is the content of ``<main>``, else of ``<article>``, else all but ``<header>``; without
            ``<nav>``, ``<aside>`` and ``<footer>``.
        references: What is done with the list of references of a PDF file. ``drop`` leaves out the
            text from a line such as ``References`` or ``7. Literatur``, after the first third of
            the file, up to a line that begins with ``Appendix``, ``Anhang``, ``Supplementary`` or
            the like, or to the end; of several lists that no such line ends, only the last.
        exclude: Leave out files of folders and globs that match this pattern, or that lie in a
            folder that matches. A pattern with a slash is compared with the path, as in the ids of
            documents; one without, with the name of the file and of each folder above it. ``*``
            also matches a slash.
        on_truncate: Treatment of texts above the model's length limit; ``warn``: cut, ``chunk``:
            split into passages. ``error`` stops at the first one, whatever ``on_error`` is.
        chunk_tokens: With ``chunk``, the maximum number of tokens of a passage, special tokens and
            prompt included; longer texts are split. None: what the model reads.
        chunk_overlap: With ``chunk``, the maximum number of tokens that a passage shares with the
            one before.
        chunk_borders: With ``chunk``, where texts are cut. ``sentences``: at the highest border in
            the second half of a passage; a heading of Markdown is higher than a paragraph, then
            come sentences, lines and words. ``words``: after the last word that fits, without
            overlap.
        classify: Fill a metadata column with the class of each document by a classifier of texts;
            updates fill it, too. The names or folders of the classifiers, by column.
        tag: Fill a metadata column with the entities of each document by a tagger, and a column
            COLUMN_TYPE with the entities of each type, such as ``names_person``; updates fill these
            columns, too. The names or folders of the taggers, by column.
        predicted_by: SHA-256 of the weights of the models of ``classify`` and ``tag``, by column;
            set when an index is made.

    Raises:
        ConfigError: A field has a value of another type, a column type is unknown,
            ``column_types`` has a column that ``metadata_fields`` leaves out, a number is out of
            range, or ``chunk_overlap`` is more than half of ``chunk_tokens``.

    Example:
        >>> ReadSettings(metadata_fields=["year"], column_types={"year": "int"}).on_truncate
        'warn'
    """

    fields: FieldNames = FieldNames()  # noqa: RUF009 (frozen)
    metadata_fields: _Names = None
    column_types: _Types = field(default_factory=dict)
    new_columns: NewColumns = "add"
    query: _Query = None
    on_error: Literal["stop", "skip"] = "stop"
    on_truncate: OnTruncate = "warn"
    text_as: TextAs | None = None
    encoding: _Encoding = None
    html: HtmlPart = "all"
    references: References = "keep"
    exclude: _Globs = ()
    chunk_tokens: _Tokens = None
    chunk_overlap: _Overlap = 0
    chunk_borders: _Borders = "sentences"
    classify: _Models = field(default_factory=dict)
    tag: _Models = field(default_factory=dict)
    predicted_by: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from sbert_search.text.column_types import parse_type  # reads files, so slow to import

        require_types(self)
        check(self)
        most = self.chunk_overlap if self.chunk_tokens is None else self.chunk_tokens // 2
        if self.chunk_overlap > most:
            raise ConfigError(
                f"chunk_overlap is {self.chunk_overlap}; use at most {most}, half of chunk_tokens."
            )
        if self.encoding is not None:
            _ = self.reading  # refuses an unknown encoding
        types = {
            name: kind if parse_type(kind) and ":" in kind else parse_type(kind)
            for name, kind in self.column_types.items()
        }
        object.__setattr__(self, "column_types", types)
        object.__setattr__(self, "exclude", tuple(self.exclude))
        if self.metadata_fields is not None:
            object.__setattr__(self, "metadata_fields", tuple(self.metadata_fields))
            for name in types.keys() - set(self.metadata_fields):
                raise ConfigError(
                    f"column_types has {name!r}, which metadata_fields leaves out; name it in both."
                )

    @property
    def reading(self) -> Reading:
        """How the bytes of files become text, and which files are left out."""
        from sbert_search.text.formats.files import Reading

        return Reading(self.encoding, self.html, self.references, tuple(self.exclude))

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
        from sbert_search.text.tokens.chunking import Chunking

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


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSettings(ReadSettings):
    """How to build an index; see also `ReadSettings`.

    Attributes:
        metric: Similarity of two vectors.
        dtype: Type of the stored vectors.
        spec: How vectors are searched.
        lexical: Settings of lexical search. None: an index for dense search only.
        language: Language of lexical search, as in `LexicalSettings`. None: that of ``lexical`` or,
            if these settings are the defaults, the one whose stop words are most frequent in the
            first texts, which a note names if it is not English.

    Example:
        >>> settings = BuildSettings(dtype="float16", spec=IndexSpec(factory="IVF64,Flat"))
        >>> settings.spec.factory
        'IVF64,Flat'
    """

    on_truncate: OnTruncate = "chunk"
    metric: Metric = "cosine"
    dtype: VectorType = "float32"
    spec: IndexSpec = IndexSpec()  # noqa: RUF009 (frozen)
    lexical: LexicalSettings | None = field(default_factory=LexicalSettings)
    language: str | None = None

    def __post_init__(self) -> None:
        super(BuildSettings, self).__post_init__()
        if self.language is not None and self.lexical is None:
            raise ConfigError(f"language is {self.language!r}, but lexical is None; leave out one.")
        elif self.lexical and self.language not in (None, self.lexical.language):
            lexical = replace(self.lexical, language=self.language, stop_words=None)
            object.__setattr__(self, "lexical", lexical)
        if self.lexical is not None:
            self.lexical.require_known_language()


class ReadFields(TypedDict, total=False):
    """The fields of `ReadSettings` that a user may set for builds and for updates."""

    fields: FieldNames
    metadata_fields: _Names
    column_types: _Types
    new_columns: NewColumns
    query: _Query
    on_error: Literal["stop", "skip"]
    on_truncate: OnTruncate
    text_as: TextAs | None
    encoding: _Encoding
    html: HtmlPart
    references: References
    exclude: _Globs
    chunk_tokens: _Tokens
    chunk_overlap: _Overlap
    chunk_borders: _Borders


class ReadKeywords(ReadFields, CheckedOptions, total=False):
    """`ReadFields`, and options that open a model and compare it with an index."""


class BuildKeywords(ReadFields, EmbedderOptions, total=False):
    """The fields of `BuildSettings` that a user sets, and options that open a model."""

    metric: Metric
    dtype: VectorType
    spec: IndexSpec
    lexical: LexicalSettings | None
    language: str | None
    classify: _Models
    tag: _Models


def split_keywords(settings: S, keywords: Mapping[str, object]) -> tuple[S, dict[str, object]]:
    """Set the fields of settings that keywords name; return settings and other keywords."""
    own = {each.name for each in fields(settings)} & keywords.keys()
    rest = {name: value for name, value in keywords.items() if name not in own}
    values = read_types(settings, {name: keywords[name] for name in own})
    return with_fields(settings, values), rest


def read_types(settings: object, values: dict[str, object]) -> dict[str, object]:
    """Return new values of settings; types of columns that they do not read any more are left out.

    An index keeps the types with which it was built, and an update may read few of its columns.
    """
    names, kept = values.get("metadata_fields"), getattr(settings, "column_types", {})
    if isinstance(names, Collection) and "column_types" not in values:
        values["column_types"] = {name: kind for name, kind in kept.items() if name in names}
    return values


def reader_of(settings: ReadSettings, sources: Sources, **more: Any) -> CorpusReader:
    """Return a reader of documents; ``more`` are further arguments of `CorpusReader`."""
    from sbert_search.text.documents import CorpusReader

    return CorpusReader(
        sources,
        fields=settings.fields,
        metadata_fields=settings.metadata_fields,
        column_types=settings.column_types,
        query=settings.query,
        on_error=settings.on_error,
        text_as=settings.text_as,
        reading=settings.reading,
        **more,
    )
