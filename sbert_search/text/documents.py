"""Read documents from files, databases and rows in memory; memory use is bounded.

Each input row becomes a `Document`, or a `Reject` if it cannot be used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from sbert_search.base import memory
from sbert_search.base.folders import first_same_file
from sbert_search.base.options import if_offered
from sbert_search.base.progress import Advance, note, progress, warn
from sbert_search.config import unknown_name
from sbert_search.errors import CorpusError
from sbert_search.records import Document
from sbert_search.text.column_types import ColumnType, parse_type
from sbert_search.text.columns import Columns, NewColumnError, letter_by_letter
from sbert_search.text.fields import (
    DOCUMENT_FIELDS,
    TEXT_FIELDS,
    FieldNames,
    Roles,
    RowParts,
    find_field,
    is_blank,
    late_id_field,
    row_parts,
)
from sbert_search.text.formats.files import Reading
from sbert_search.text.formats.markup import NO_TEXT
from sbert_search.text.formats.rows import BadRow, RawRow, Reject, RowLimit, as_one_text, excerpt
from sbert_search.text.sources import (
    Root,
    SourceFile,
    TextAs,
    as_read,
    content_sha256,
    field_names,
    members,
    named_read_errors,
    read_rows,
)
from sbert_search.text.spool import Sources, source_files
from sbert_search.text.vectors import RowVectors, VectorReader, VectorRule, Vectors

__all__ = ["ColumnType", "CorpusReader", "FieldNames", "ReadBatch", "Reject", "Survey"]


_ROWS_A_REPORT = 256  # `CorpusReader.survey` reports its progress after this number of rows
_SHOWN_FILES = 10  # largest number of bad files that a message names
_MOST_LEFT_OUT = 1000  # fields in `Survey.left_out`; the keys of JSON objects may be without end
# Fields of the row that is made of a file whose whole content is a document.
_OF_FILES = Roles(id="id", text=("text",), title="title")


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch of consecutive input rows, in input order; `CorpusReader.batches` explains blocks."""

    documents: list[Document]
    rejects: list[Reject]
    rows_end: int  # input rows from the start of the first source; a later pass can resume there
    # Given by the user, float32 (n_documents, dim); None: a model computes them.
    vectors: Vectors | None = None
    starts_block: bool = True
    ends_block: bool = True


@dataclass(frozen=True, slots=True)
class Unread:
    """A part of the documents of an index that no row of a source has, or that is not read."""

    kind: Literal["column", "text", "title"]
    name: str
    why: str  # such as "No row has the column 'kind'"


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of the first pass over all sources, which checks every row."""

    rows: int  # including the rejected ones
    rejected: int
    sha256: str  # of the content of all sources, and of the array of vectors if there is one
    columns: Mapping[str, ColumnType]
    dim: int | None = None  # None: no vectors are given, or all their rows were rejected
    unread: tuple[Unread, ...] = ()
    # Maps each field that is not read to the chosen metadata fields that no row with it has.
    left_out: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _FilePlan:
    file: SourceFile
    stamp: tuple[int, int]  # size and modification time
    first_row: int  # number of rows of all files before this one
    roles: Roles | None = None  # None: the file has no valid row
    names: tuple[str, ...] = ()  # fields of the first rows
    first_valid: str = ""  # position of the first row that can be read
    rows: int = 0
    rejected: int = 0
    # Hash of the position (`RawRow.source`) of each row, kept only if the rows are whole files (or
    # pages) and the user gave an array with a vector for each. A file that was added or removed
    # since the survey would shift the vectors, and the stamp of a folder is not compared.
    places: array[int] = field(default_factory=partial(array, "q"))

    def is_moved(self, number: int, place: str) -> bool:
        return bool(self.places) and self.places[number] != hash(place)


class CorpusReader:
    """Reads documents from files, folders, globs, databases, standard input and rows in memory.

    A row is rejected if it cannot be read, if it has no id although its file has an id field, if
    its title and text are both blank, or if a value has the wrong type. Blank lines are not rows.
    If a file has no id field, the id of a row is ``<file name>#<number>``. The number is that of
    the line in a text format such as JSON lines or CSV, else that of the row; both count from 1.
    Rows with given vectors need no title and text; such a row is rejected if its vector cannot be
    used.

    If a file is damaged, such as a truncated gzip file, the part from the damage on counts as one
    rejected row; in a damaged Parquet row group, each row that cannot be decoded does. Standard
    input, rows in memory and the results of queries are copied to a temporary file, so that they
    can be read twice.

    The arguments that are also fields of `ReadSettings` are described there. Of `Document` objects
    only the vector field is used. Files that are documents always keep the columns path and page.

    Args:
        columns: Types of the metadata columns of an existing index.
        widens: See `Columns`.
        batch_rows: Maximum input rows per batch. A batch ends earlier if its documents and given
            vectors take 16 MiB, or less with a small memory limit (see `memory.shares`).
        vectors: One for each row in input order, including rejected rows.
        root: Folder to which the ids of files are relative; see `Root`.
        reading: How the bytes of text files become text; None: as ``sources`` says, else UTF-8.
        stored: Names among ``fields`` that an index stores from its build. A file may lack a stored
            name that detection may find, and a row may lack a stored vector; a model then embeds
            its text.
        partial: Returns the document with an id, with None for values that it loses. A row then
            changes this document: it must have an id, and fields that it lacks, or leaves blank,
            keep their values, as does the source unless it is "". None: rows are whole.
    """

    def __init__(
        self,
        sources: Sources | SourceFile,
        *,
        fields: FieldNames | None = None,
        on_error: Literal["stop", "skip"] = "stop",
        columns: Mapping[str, ColumnType] | None = None,
        widens: Callable[[str], bool] = lambda name: True,
        batch_rows: int = 1024,
        vectors: RowVectors | None = None,
        vector_rule: VectorRule = VectorRule(),  # noqa: B008 (frozen)
        root: Root = "common",
        text_as: TextAs | None = "lines",
        stored: FieldNames | None = None,
        metadata_fields: Collection[str] | None = None,
        column_types: Mapping[str, str] | None = None,
        query: str | None = None,
        reading: Reading | None = None,
        partial: Callable[[str], Document | None] | None = None,
    ) -> None:
        if batch_rows < 1:
            raise ValueError(f"batch_rows is {batch_rows}; it must be at least 1.")
        self.on_error, self._partial = on_error, partial
        self._changed_ids: set[str] = set()  # of the partial rows so far
        self.fields, self._stored = fields or FieldNames(), stored or FieldNames()
        self._known, self._widens = columns, widens
        self._batch_rows, self._batch_bytes = batch_rows, memory.shares().batch
        self._limit = RowLimit.within()
        self._files = source_files(
            sources, self, root=root, text_as=text_as, vector=self.fields.vector, query=query
        )
        if reading is not None:
            self._files = [as_read(file, reading, self._limit) for file in self._files]
        self._plans: list[_FilePlan] = []
        self._reading: _FilePlan | None = None  # the file that `batches` reads
        self._declared = column_types or {}
        self._columns = Columns(columns, widens, self._declared)
        kinds = {**(columns or {}), **{n: parse_type(kind) for n, kind in self._declared.items()}}
        self._numbers = {name for name, kind in kinds.items() if "int64" in kind}
        self._chosen = None if metadata_fields is None else frozenset(metadata_fields)
        self._scanned: dict[str, tuple[int, ...]] = {}  # pages without text of PDF files
        self._cut: dict[str, tuple[int, ...]] = {}  # and those without their references
        self._bad_files: list[Reject] = []
        self._unseen: set[str] = set()  # named fields that no row had so far
        self._unread: set[str] = set()  # known columns of which no row had metadata so far
        self._absent: set[str] = set()  # known columns of which no row had a field so far
        self._left_out: dict[str, set[str]] = {}  # see `Survey.left_out`
        self._mixed_at: dict[str, str] = {}  # the row of the value in `Columns.mixed`
        self._has_titles = False  # whether a row had a field of the title
        has_vectors = vectors is not None or self.fields.vector is not None
        self._vectors = VectorReader(vector_rule, vectors) if has_vectors else None
        is_stored = self.fields.vector is not None and self.fields.vector == self._stored.vector
        self._embeds = is_stored and vectors is None  # the texts of rows without a vector

    @property
    def root(self) -> Path | None:
        """The folder to which the ids of files are relative; None: no id is such a path."""
        return next((file.root for file in self._files if file.root), None)

    @property
    def paths(self) -> list[Path]:
        """All files to read, including each file in a folder of files, and all databases."""
        files = [path for file in self._files for path, _ in members(file) if path is not None]
        return files + [file.origin for file in self._files if file.origin is not None]

    @property
    def _shown(self) -> str:
        more = f" and {len(self._files) - 1} more" if len(self._files) > 1 else ""
        return f"{self._files[0].shown}{more}"

    def reads(self, path: Path) -> bool:
        """Whether a path is one of the source files, also through a link or another spelling."""
        return path.exists() and first_same_file(path, self.paths) is not None

    def survey(self, *, allow_empty: bool = False) -> Survey:
        """Check every row once, and decide the fields of each file and all column types.

        Without ``allow_empty``, sources without rows are an error.
        """
        self._columns = Columns(self._known, self._widens, self._declared)
        self._unseen = {*self.fields.texts, *(self._chosen or ()), *self._declared}
        self._unread, self._absent = {*(self._known or ())}, {*(self._known or ())}
        self._has_titles, self._left_out = False, {}
        self._mixed_at.clear()
        self._plans, rows = [], 0
        self._scanned, self._cut, self._bad_files = {}, {}, []
        self._changed_ids.clear()
        with progress("Checking", None, "rows") as advance:
            for file in self._files:
                self._plans.append(self._survey_file(file, rows, advance))
                rows += self._plans[-1].rows
        self._report_files()
        for name, value in sorted(self._columns.mixed.items()):
            lists, at = shlex.quote(f"{name}=list[text]"), self._mixed_at[name]
            remedy = if_offered("--column-type", f" To keep them: --column-type {lists}.")
            what = f"{at}: the column {name!r} has lists and single texts"
            if name in (self._known or ()):
                what = f"{at}: the column {name!r} has single texts in the index, and here a list"
                text = as_one_text(value if isinstance(value, list) else [value])
                remedy = f" If one text is meant, pass {text}."
            warn(f"{what} ({excerpt(value)}), so its lists become JSON text.{remedy}")
        for name, texts in self._columns.texts.items():
            if message := letter_by_letter(name, texts, "compared and sorted"):
                note(message)
        if not (rows or allow_empty):
            raise CorpusError(f"{self._shown}: holds no rows.")
        self._refuse_letters()
        self._require_seen()
        self._note_ignored()
        rejected = sum(plan.rejected for plan in self._plans)
        sha256, vectors = content_sha256(self._files), self._vectors
        if vectors and vectors.given:
            vectors.given.require(rows, vectors.rule)
            sha256 = hashlib.sha256(f"{sha256} {vectors.given.sha256()}".encode()).hexdigest()
        dim = vectors.dim if vectors else None
        types = dict(self._columns.types)
        return Survey(rows, rejected, sha256, types, dim, self._unread_parts(), self._left_out)

    def batches(
        self, *, skip_rows: int = 0, share: Callable[[Document], float] | None = None
    ) -> Iterator[ReadBatch]:
        """Yield the rows in batches, in input order; run `survey` first if it has not run yet.

        The input is cut into blocks. A block ends at each multiple of ``batch_rows`` rows of all
        sources together, or earlier if its documents and given vectors reach the memory limit of a
        batch. If rows may lack a stored vector, a block also ends where rows with and without a
        vector follow each other.

        A block is one batch, or several if ``share`` is given. ``share`` returns which share of a
        batch a document fills, and a batch ends with the document at which the shares add up to 1.

        ``skip_rows`` is the ``rows_end`` of a batch of an earlier pass with the same ``share``.
        Only the rows after it are yielded, in the same batches as in the earlier pass.
        """
        if not self._plans:
            self.survey()
        self._changed_ids.clear()
        documents: list[Document] = []
        vectors: list[Vectors] = []
        rejects: list[Reject] = []
        rows = skip_rows - skip_rows % self._batch_rows  # to find the ends of blocks
        all_rows = sum(plan.rows for plan in self._plans)
        block_bytes, filled, starts_block = 0, 0.0, True
        for item in self._items(rows):
            differs = not isinstance(item, Reject) and bool(vectors) != (item[1] is not None)
            if self._embeds and documents and differs:
                if rows > skip_rows:
                    given = self._stacked(documents, vectors)
                    yield ReadBatch(documents, rejects, rows, given, starts_block)
                documents, vectors, rejects, filled, starts_block = [], [], [], 0.0, True
                block_bytes = 0
            rows += 1
            if isinstance(item, Reject):
                rejects.append(item)
            else:
                document, vector = item
                documents.append(document)
                block_bytes += document.held_bytes
                filled += share(document) if share else 0.0
                if vector is not None:
                    vectors.append(vector)
                    block_bytes += vector.nbytes
            ends_block = (
                rows % self._batch_rows == 0 or block_bytes >= self._batch_bytes or rows == all_rows
            )
            if ends_block or rows == skip_rows or filled >= 1:
                if rows > skip_rows:
                    self._require_unchanged()
                    given = self._stacked(documents, vectors)
                    yield ReadBatch(documents, rejects, rows, given, starts_block, ends_block)
                documents, vectors, rejects, filled, starts_block = [], [], [], 0.0, ends_block
                block_bytes = 0 if ends_block else block_bytes

    def _stacked(self, documents: list[Document], vectors: list[Vectors]) -> Vectors | None:
        if self._vectors is None or (documents and not vectors):
            return None
        return np.stack(vectors) if vectors else np.empty((0, self._vectors.dim or 0), np.float32)

    def _survey_file(self, file: SourceFile, first_row: int, advance: Advance) -> _FilePlan:
        plan = _FilePlan(file, _stamp(file), first_row)
        self._before = self._columns.copy(), self._vectors.dim if self._vectors else None
        if file.holds_files:
            # The command sync finds the documents of a file by the column path.
            chosen = None if self._chosen is None else self._chosen | {"path", "page"}
            plan.roles = dataclasses.replace(_OF_FILES, metadata=chosen)
        elif (names := field_names(file, limit=self._limit)) is not None:
            plan.names = tuple(names)
            plan.roles = self._roles(file, names)
        follows = file.holds_files and self._vectors is not None and self._vectors.given is not None
        for row in read_rows(file, limit=self._limit):
            plan.rows += 1
            if follows:
                plan.places.append(hash(row.source))
            reject = row if isinstance(row, Reject) else self._learn(row, plan)
            if reject is not None:
                plan.rejected += 1
                if file.holds_files:  # all are named, so that a user learns them at once
                    self._bad_files.append(file.in_encoding(reject))
                else:
                    self._refuse(file.in_encoding(reject))
            elif isinstance(row, RawRow) and (row.scanned or row.cut):
                own = row.source.rpartition(":")[0]
                self._scanned[own], self._cut[own] = row.scanned, row.cut
            if plan.rows % _ROWS_A_REPORT == 0:
                advance(_ROWS_A_REPORT)
        advance(plan.rows % _ROWS_A_REPORT)
        return plan

    @property
    def numbered(self) -> str | None:
        """The first source whose rows have no field of ids; None: all have one."""
        found = (plan.file.shown for plan in self._plans if plan.roles and plan.roles.id is None)
        return next(found, None)

    @property
    def text_fields(self) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The fields of each table, and those of them that are its text."""
        tables = [plan for plan in self._plans if plan.names and not plan.file.holds_documents]
        return [(plan.names, plan.roles.text) for plan in tables if plan.roles]

    def _roles(self, file: SourceFile, names: list[str]) -> Roles:
        texts = [name for name in self.fields.texts or TEXT_FIELDS if name != self.fields.id]
        lacks_text = find_field(texts, names) is None
        own = names
        if self._partial:
            names = [*names, *self.fields.texts, *filter(None, [self.fields.title])]
        fields, has_vectors = self.fields.without_absent(self._stored, names), bool(self._vectors)
        if file.holds_documents:
            fields = FieldNames(vector=fields.vector)
        if self._partial and fields.id is not None and fields.id not in own:
            hint = unknown_name(fields.id, fields.id, own, "id field")
            raise CorpusError(f"{file.shown}: {hint} The ids of partial rows belong there.")
        if self._embeds and fields.vector not in names:
            if not self._partial:
                note(f"{file.shown} has no field {fields.vector!r}; a model embeds its new texts.")
            names, has_vectors = [*names, str(fields.vector)], False
        try:
            roles = fields.resolve(
                names, file.shown, has_vectors=has_vectors or self._partial is not None
            )
        except CorpusError as error:
            if lacks_text and self._known is not None and not self._partial:
                raise CorpusError(
                    f"{error} To change only the fields that rows have, pass --partial to upsert."
                ) from error
            raise
        if self._partial and roles.id is None:
            raise CorpusError(f"{file.shown}: no id field; partial rows are found by their ids.")
        needs_text = roles.needs_text and not self._embeds  # a later row may have a vector
        return dataclasses.replace(roles, metadata=self._chosen, needs_text=needs_text)

    def _refuse_letters(self) -> None:
        """Refuse the letters of a field's name, in place of the name, as metadata fields."""
        names = {*(self._known or ()), *self._columns.types}
        for name in names.union(*(plan.names for plan in self._plans)):
            if len(name) > 1 and self._chosen == frozenset(name) and not self._chosen & names:
                raise CorpusError(
                    f"The metadata fields are the letters of {name!r}; pass the list [{name!r}]."
                )

    def _require_seen(self) -> None:
        # Rows that are added to an index may lack a field that other rows of the index have.
        if self._unseen and self._known is None:
            name = min(self._unseen)
            kind = "text field" if name in self.fields.texts else "metadata field"
            known = [*self._plans[0].names, *self._columns.types]
            raise CorpusError(f"{self._shown}: {unknown_name(name, name, set(known), kind)}")

    def _note_ignored(self) -> None:
        """Name the fields of partial rows that are not read, and so change nothing."""
        if not self._partial or self._chosen is None:
            return
        ignored = dict.fromkeys(name for plan in self._plans for name in plan.names)
        for roles in filter(None, (plan.roles for plan in self._plans)):
            for name in (roles.id, roles.title, roles.vector, *roles.text, *self._chosen):
                ignored.pop(name or "", None)
        if ignored:
            note(
                f"Not read, since the index does not name them among its metadata fields: "
                f"{', '.join(ignored)}. To read them too, name all metadata fields, old and new"
                f"{if_offered('--metadata-fields', ', with --metadata-fields')}."
            )

    def _learn(self, row: RawRow, plan: _FilePlan) -> Reject | None:
        assert plan.roles is not None  # set, since the file has a valid row
        self._note_fields(row, plan)
        plan.first_valid = plan.first_valid or row.source
        if plan.roles.id is None and (late := late_id_field(row.values, plan.roles)):
            # The file has an id field after all, so each of its earlier rows lacks the id, and
            # what was learnt from them is forgotten.
            plan.roles = dataclasses.replace(plan.roles, id=late)
            self._columns, dim = self._before
            if self._vectors:
                self._vectors.dim = dim
            reason = f"the row has no id ({late!r} is missing, but {row.source} has it)"
            self._refuse(Reject(plan.first_valid, reason))
            plan.rejected = plan.rows - 1
        try:
            parts = row_parts(self._with_classes(row), plan.roles, plan.file.name)
            vector = self._vector(parts, plan.first_row + plan.rows - 1)
            self._columns.learn(parts.metadata, typed=row.typed)
            for name in self._columns.mixed.keys() - self._mixed_at.keys():
                self._mixed_at[name] = row.source
            self._before_change(parts.doc_id, row, plan.roles)
        except BadRow as bad:
            return bad.at(row.source)
        if self._vectors and vector is not None:
            self._vectors.dim = len(vector)
        return None

    def _note_fields(self, row: RawRow, plan: _FilePlan) -> None:
        """Note which of the fields and columns that are looked for a row has."""
        names, roles = row.values.keys(), plan.roles
        assert roles is not None
        if self._unseen:
            self._unseen -= names
        if self._absent:
            self._absent -= names
        if self._unread:
            self._unread -= roles.of_metadata(names)
        if self._known and self._chosen:
            given = {name for name, value in row.values.items() if value is not None}
            for name in given - self._chosen - roles.parts.keys():
                if len(self._left_out) < _MOST_LEFT_OUT or name in self._left_out:
                    self._left_out.setdefault(name, {*self._chosen}).difference_update(given)
        if not self._has_titles and roles.title in names:
            # A document without a title has an empty one.
            may_be_empty = not plan.file.holds_documents and self.fields != DOCUMENT_FIELDS
            self._has_titles = may_be_empty or bool(row.values[roles.title])

    def _unread_parts(self) -> tuple[Unread, ...]:
        """Return the parts that documents lose which the rows replace."""
        if self._known is None:
            return ()
        own = [plan.roles for plan in self._plans if plan.roles]
        reads = {name: part for roles in own for name, part in roles.parts.items()}
        parts = []
        for name in sorted(self._unread):
            why = f"No row has the column {name!r}"
            if self._chosen is not None and name not in self._chosen:
                why = f"The column {name!r} is not among the metadata fields that are read"
            elif name not in self._absent and name in reads:
                why = f"The column {name!r} is read as {reads[name]} and not as metadata"
            parts.append(Unread("column", name, why))
        texts = {*self.fields.texts}
        if lacking := texts & self._unseen if texts - self._unseen else ():
            parts += [
                Unread("text", n, f"No row has the text field {n!r}") for n in sorted(lacking)
            ]
        if not self._has_titles:
            title = next((roles.title for roles in own if roles.title), None)
            why = f"No row has the title field {title!r}" if title else "No field is read as title"
            parts.append(Unread("title", title or "", why))
        return tuple(parts)

    def _with_classes(self, row: RawRow) -> RawRow:
        """Replace numbers of classes by names, except in columns that hold numbers."""
        if not row.classes:
            return row
        return dataclasses.replace(row, values=row.named(row.classes.keys() - self._numbers))

    def _vector(self, parts: RowParts, number: int) -> Vectors | None:
        """Return the given vector of a row; None: a model embeds its text."""
        if self._vectors is None:
            return None
        if self._vectors.given:
            return self._vectors.of_row(number)
        assert self.fields.vector is not None
        if self._embeds and parts.vector is None:
            if not (parts.title or parts.text or self._partial):
                raise BadRow(f"the row has neither a text nor a vector ({self.fields.vector!r})")
            return None
        return self._vectors.of_value(parts.vector, self.fields.vector)

    def _items(self, skip: int) -> Iterator[tuple[Document, Vectors | None] | Reject]:
        for plan in self._plans:
            if skip >= plan.rows:
                skip -= plan.rows
                continue
            self._reading, read = plan, skip
            self._require_unchanged()
            for row in read_rows(plan.file, skip=skip, limit=self._limit):
                if read == plan.rows or plan.is_moved(read, row.source):
                    raise _changed(plan.file)
                number = plan.first_row + read
                item = row if isinstance(row, Reject) else self._document(row, plan, number)
                if isinstance(item, Reject):
                    item = plan.file.in_encoding(item)
                    self._refuse(item)
                read += 1
                yield item
            if read < plan.rows:
                raise _changed(plan.file)
            self._require_unchanged()
            skip = 0

    def _require_unchanged(self) -> None:
        plan = self._reading
        # A folder is not compared: other files, such as those of the index, may be written to it.
        if plan and plan.file.format != "folder" and _stamp(plan.file) != plan.stamp:
            raise _changed(plan.file)

    def _document(
        self, row: RawRow, plan: _FilePlan, number: int
    ) -> tuple[Document, Vectors | None] | Reject:
        assert plan.roles is not None  # set by the survey
        try:
            parts = row_parts(self._with_classes(row), plan.roles, plan.file.name)
            vector = self._vector(parts, number)
            metadata = self._columns.convert(parts.metadata, typed=row.typed)
            old = self._before_change(parts.doc_id, row, plan.roles)
        except BadRow as bad:
            return bad.at(row.source)
        except NewColumnError as error:  # the survey saw all columns, so the file has changed
            raise _changed(plan.file) from error
        text, title, source = parts.text, parts.title, row.source
        if old is not None:
            if is_blank(row.values, plan.roles.own_texts[0]):
                text = old.text
            title = title or old.title
            metadata = {**old.metadata, **{n: v for n, v in metadata.items() if v != ""}}
            if row.fingerprint is None:  # else the row is the file itself
                source = old.source or source
        return Document(parts.doc_id, text, title, metadata, source, row.fingerprint), vector

    def _before_change(self, doc_id: str, row: RawRow, roles: Roles) -> Document | None:
        """Return the document that a partial row changes; None: rows are whole."""
        if self._partial is None:
            return None
        if len({is_blank(row.values, name) for name in roles.own_texts}) > 1:
            names = ", ".join(map(repr, roles.own_texts))
            reason = f"the text is joined from {names}; a partial row has all of them, or none"
            raise BadRow(reason, doc_id)
        if doc_id in self._changed_ids:
            raise BadRow("an earlier row has this id; join the two", doc_id)
        self._changed_ids.add(doc_id)
        if (old := self._partial(doc_id)) is None:
            raise BadRow("a partial row, but the index has no document with this id", doc_id)
        for name, value in old.metadata.items():
            if value is None and row.values.get(name) not in (None, ""):
                raise BadRow(f"the row has a value of {name!r}, which it is to lose", doc_id)
        self._require_whole_parts(row, roles, old)
        return old

    def _require_whole_parts(self, row: RawRow, roles: Roles, old: Document) -> None:
        """Refuse a new value of a field of which the index made the text or title, without these.

        The fields of a request have other names than those of the files of the build.
        """
        kept, title = self._stored, self._stored.title
        of_text = ("text", kept.texts, roles.own_texts[0])
        for part, names, own in (of_text, ("title", (title,) if title else (), roles.title)):
            for name in set(names) - {*roles.text, roles.title}:
                value = row.values.get(name)
                had = old.metadata.get(name, "")  # None: the document loses its value
                is_new = had is None or (value not in (None, "") and value != had)
                if is_new and (own is None or is_blank(row.values, own)):
                    joined = "joined from" if len(names) > 1 else "that of"
                    raise BadRow(
                        f"the {part} is {joined} {', '.join(map(repr, names))}; a partial row "
                        f"with a new {name!r} has the new {part}, too, as {own!r}",
                        old.doc_id,
                    )

    def _report_files(self) -> None:
        """Warn of scanned pages of PDF files, and raise one error that names all bad files."""
        if found := [f"{name} ({_ranges(own)})" for name, own in self._cut.items() if own]:
            note(f"Lists of references are left out: {', '.join(first_of(found, 'more files'))}.")
        pages = self._scanned.items()
        if found := [f"{len(own)} in {name} ({_ranges(own)})" for name, own in pages if own]:
            warn(
                "Pages that are images without text are left out, unless text recognition (OCR) "
                f"gives them text: {', '.join(first_of(found, 'more files'))}."
            )
        self._refuse(*self._bad_files)

    def _refuse(self, *rejects: Reject) -> None:
        if self.on_error != "stop" or not rejects:
            return
        reject, *others = rejects
        if others:
            lines = [f"{len(rejects):,} bad files or pages:"]
            lines += first_of([f"{bad}." for bad in rejects], "more.")
            if any("UTF-8" in bad.reason for bad in rejects) and if_offered("--encoding", "yes"):
                lines.append("For files that are not UTF-8, name the encoding: --encoding cp1252.")
            skip = "Fix them, or pass --on-error skip to read the others and to list these."
            raise CorpusError("\n".join([*lines, if_offered("--on-error", skip, "Fix them.")]))
        skip = "Fix it, or pass --on-error skip."
        if reject.reason == NO_TEXT and if_offered("--exclude", "yes"):
            skip = "Leave it out with --exclude, or pass --on-error skip to index the others."
        raise reject.error(if_offered("--on-error", skip, "Fix it."))


def first_of(found: list[str], more: str) -> list[str]:
    """Return the first of some names or messages, and the number of the others with a word."""
    rest = len(found) - _SHOWN_FILES
    return [*found[:_SHOWN_FILES], f"and {rest:,} {more}"] if rest > 0 else found


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending page numbers as text, such as ``pages 2, 4-6``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return f"page{'s' * (len(numbers) > 1)} {', '.join('-'.join(map(str, run)) for run in runs)}"


def _changed(file: SourceFile) -> CorpusError:
    return CorpusError(
        f"{file.shown}: changed while it was read. Start again; if a program keeps writing to it, "
        "read a copy."
    )


def _stamp(file: SourceFile) -> tuple[int, int]:
    with named_read_errors(file.shown):
        state = file.path.stat()
    return state.st_size, state.st_mtime_ns
