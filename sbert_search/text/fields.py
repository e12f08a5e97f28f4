"""Detect the id, text and title fields of a file, and split its rows into these parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from sbert_search.base.options import if_offered
from sbert_search.config import unknown_name
from sbert_search.declared import Bounds
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.text.column_types import as_text
from sbert_search.text.formats.rows import BadRow, RawRow, as_one_text, check_text, repeated_name

_ID_FIELDS = ("_id", "id", "doc_id", "docid")
TEXT_FIELDS = ("text", "contents", "content", "body", "passage", "document", "sentence")
_TITLE_FIELD = "title"
MAX_ID_CHARS = 1024
_TEXT_SEPARATOR = "\n\n"  # between the values of several text fields

_Name = Annotated[str | None, Bounds(metavar="NAME")]
TextAs = Literal["lines", "file"]
"""Whether a line or the whole file is a document, for a ``.txt`` file that is itself a source."""
HtmlPart = Literal["all", "main"]
"""What is read of an HTML page."""
References = Literal["keep", "drop"]
"""Whether the list of references of a PDF file is read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldNames:
    """Names of the fields that hold the id, the text, the title and the vector of a row.

    Attributes:
        id: Field that holds the id. None: the first existing one of ``_id``, ``id``, ``doc_id``,
            ``docid``. If no field has one of the usual names, ``ID`` counts, too, as ``Title`` and
            ``Text`` do. A code that users search for can be named as text, too.
        text: Field of the text, or several, which are joined by a blank line. They are joined in
            this order, and a missing one is left out. None: the first existing one of ``text``,
            ``contents``, ``content``, ``body``, ``passage``, ``document``, ``sentence``.
        title: Field that holds the title. None: ``title``, unless this field is named for another
            part.
        vector: Field with the vector of each row, a list of numbers; no model embeds the row. None:
            no field; a model embeds the text, unless the user gives an array of vectors.

    Raises:
        ConfigError: A field is named twice, and not as id and text.

    Example:
        >>> rows = [{"key": "mill", "body": "A river turns the wheel."}]
        >>> names = FieldNames(id="key", text="body")
        >>> "mill" in Index.build(rows, model="hashing", fields=names)
        True
    """

    id: _Name = None
    text: Annotated[str | tuple[str, ...] | list[str] | None, Bounds(metavar="NAME,...")] = None
    title: _Name = None
    vector: _Name = None

    def __post_init__(self) -> None:
        if isinstance(self.text, (tuple, list)):
            texts = tuple(self.text)
            object.__setattr__(self, "text", texts[0] if len(texts) == 1 else texts or None)
        names = [*self.texts, self.title, self.vector]
        if self.id not in self.texts:
            names.append(self.id)
        if (repeated := repeated_name([name for name in names if name is not None])) is not None:
            weight = if_offered(
                "--title-weight",
                " To weight the words of titles in lexical search, use --title-weight "
                "(LexicalSettings(title_weight=...)).",
            )
            raise ConfigError(
                f"The field {repeated!r} is named twice; name each field once.{weight}"
            )

    @property
    def texts(self) -> tuple[str, ...]:
        """The named fields of the text; () if the field is to be detected."""
        return (self.text,) if isinstance(self.text, str) else tuple(self.text or ())

    def without_absent(self, stored: FieldNames, names: Collection[str]) -> FieldNames:
        """Leave names to detection that an index stores, a file lacks, and detection may find.

        ``stored`` are the names of the index, ``names`` the fields of the file.
        """
        absent = {
            role: None
            for role, known in (
                ("id", _ID_FIELDS),
                ("text", TEXT_FIELDS),
                ("title", (_TITLE_FIELD,)),
            )
            if (name := getattr(self, role)) == getattr(stored, role)
            and find_field(known, [name] if isinstance(name, str) else []) is not None
            and name not in names
        }
        return replace(self, **absent)

    def resolve(
        self,
        names: Iterable[str],
        shown: str,
        remedy: str | None = None,
        *,
        has_vectors: bool = False,
    ) -> Roles:
        """Choose the fields of one file from the field names of its first rows.

        A field that is named for one part of a row is not detected as another part.

        If several text fields are named, at least one of them must exist. ``remedy`` is the last
        sentence of the message if there is no text field. Rows with given vectors need no text.
        """
        names = list(names)
        own = [name for name in self.texts if name != self.id] or self.texts
        texts = [name for name in own if name in names] or own[:1]
        named = [("id", self.id), *(("text", text) for text in texts)]
        named += [("title", self.title), ("vector", self.vector)]
        for role, field in named:
            if field is not None and field not in names:
                raise CorpusError(f"{shown}: {unknown_name(field, field, names, f'{role} field')}")
        taken = {self.id, *self.texts, self.title, self.vector}
        free = [name for name in names if name not in taken]
        text = self.texts or tuple(filter(None, [find_field(TEXT_FIELDS, free)]))
        if not text and not has_vectors:
            remedy = remedy or if_offered(
                "--text-field",
                "Name the text field with --text-field.",
                "Rename the text field to 'text'.",
            ) + if_offered(
                "--title-field",
                " Several are joined: --text-field NAME,NAME. A title is named by --title-field.",
            )
            raise CorpusError(
                f"{shown}: no text field among {', '.join(map(repr, names))}. {remedy}"
            )
        return Roles(
            id=self.id or find_field(_ID_FIELDS, free),
            text=text or tuple(name for name in TEXT_FIELDS if name not in taken)[:1],
            title=self.title
            or find_field([_TITLE_FIELD], free)
            or (None if _TITLE_FIELD in taken else _TITLE_FIELD),
            vector=self.vector,
            needs_text=not has_vectors,
        )


DOCUMENT_FIELDS = FieldNames(id="_id", text="text", title="title")
"""The fields of rows that are whole documents, whatever the fields of an index are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """Names of the fields of one file."""

    id: str | None  # None: an id is made from the file name and the number of the line or row
    text: tuple[str, ...]
    title: str | None
    vector: str | None = None
    needs_text: bool = True  # whether a row without title and text is bad
    metadata: frozenset[str] | None = None  # may name fields above, too; None: all others

    @property
    def parts(self) -> dict[str | None, str]:
        """What each field is that is no metadata: id, text, title or vector."""
        texts: dict[str | None, str] = dict.fromkeys(self.text, "text")
        return {self.vector: "vector", self.title: "title", self.id: "id"} | texts

    def of_metadata(self, names: Collection[str]) -> set[str]:
        """Return the fields among ``names`` that are metadata."""
        kept = {*names} - self.parts.keys() if self.metadata is None else self.metadata
        return {*kept}.intersection(names)

    @property
    def own_texts(self) -> tuple[str, ...]:
        """The fields of the text without the field of the id, unless that is the only one."""
        return tuple(name for name in self.text if name != self.id) or self.text


@dataclass(frozen=True, slots=True)
class RowParts:
    """The parts of a row: id, title and text are checked; metadata and vector are not converted."""

    doc_id: str
    title: str
    text: str
    metadata: Mapping[str, object]
    vector: object = None


def row_parts(row: RawRow, roles: Roles, file_name: str) -> RowParts:
    """Split a row into its parts; raises `BadRow` if it cannot be used."""
    values = row.values
    vector = values.get(roles.vector) if roles.vector else None
    title = _text_of(values.get(roles.title), roles.title) if roles.title else ""
    parts = (_text_of(values.get(name), name) for name in roles.text)
    text = _TEXT_SEPARATOR.join(filter(None, parts))
    if roles.id is None:
        doc_id = f"{file_name}#{row.number}"
    else:
        doc_id = checked_id(values.get(roles.id), roles.id)
    if roles.needs_text and not title and all(is_blank(values, name) for name in roles.own_texts):
        raise BadRow(f"blank document: {_all_blank([roles.title, *roles.own_texts])}")
    kept = roles.of_metadata(values.keys())
    metadata = {name: value for name, value in values.items() if name in kept}
    return RowParts(doc_id, title, text, _flat(metadata), vector)


def late_id_field(names: Iterable[str], roles: Roles) -> str | None:
    """Return the first of `_ID_FIELDS` that is among the names and has no other role, or None."""
    taken = (*roles.text, roles.title, roles.vector)
    return find_field(_ID_FIELDS, [name for name in names if name not in taken])


def find_field(known: Iterable[str], names: Iterable[str]) -> str | None:
    """Return the first known field that is among the names; if none is, the first in other case.

    Known names are in lower case.
    """
    own = list(names)
    places = {name: name for name in own}, {name.lower(): name for name in own}
    return next((place[name] for place in places for name in known if name in place), None)


def is_blank(values: Mapping[str, object], name: str) -> bool:
    """Whether a field is missing or has no text."""
    return not _text_of(values.get(name), name)


def _all_blank(names: Iterable[str | None]) -> str:
    *others, last = [repr(name) for name in names if name is not None]
    both = "both" if len(others) == 1 else "all"
    return f"{', '.join(others)} and {last} are {both} blank" if others else f"{last} is blank"


def _text_of(value: object, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        kind, like = type(value).__name__, ""
        if isinstance(value, list):
            like = f", such as {as_one_text(value)}"
        raise BadRow(f"{name!r} is of type {kind}; it must be a string{like}", value)
    return check_text(value, name) if value.strip() else ""


def checked_id(value: object, name: str) -> str:
    """Return an id as text; raises `BadRow` if it cannot be used."""
    if value is None or value == "":
        raise BadRow(f"the row has no id ({name!r} is missing or empty)")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        kind = type(value).__name__
        raise BadRow(f"{name!r} is of type {kind}; an id must be a string or an integer", value)
    if not value.strip():
        raise BadRow(f"{name!r} is blank", value)
    if len(value) > MAX_ID_CHARS:
        raise BadRow(f"{name!r} is longer than {MAX_ID_CHARS} characters", value)
    return check_text(value, name)


def _flat(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return metadata without nulls, objects as JSON text; strings outside lists are checked."""
    flat: dict[str, object] = {}
    for name, value in metadata.items():
        if isinstance(value, (str, dict)):
            flat[name] = as_text(value, name)
        elif value is not None:
            flat[name] = value
    return flat
