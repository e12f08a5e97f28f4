"""Documents from files, in bounded memory, with every input row accounted for."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sbert_search.corpus.columns import Columns, ColumnType
from sbert_search.corpus.fields import FieldNames, Roles, first_id_field, row_parts
from sbert_search.corpus.formats.limits import RowLimit
from sbert_search.corpus.formats.rows import BadRow, RawRow, Reject
from sbert_search.corpus.sources import (
    SourceFile,
    content_sha256,
    expand,
    field_names,
    members,
    read_rows,
)
from sbert_search.errors import CorpusError
from sbert_search.records import Document
from sbert_search.runtime import memory
from sbert_search.runtime.disk.same_file import same_file

__all__ = ["ColumnType", "CorpusReader", "FieldNames", "ReadBatch", "Reject", "Survey"]


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Documents of consecutive input rows, and the rows among them that were rejected.

    Attributes:
        documents: In input order.
        rejects: In input order.
        rows_end: Input rows consumed since the start of all sources, this batch among them: where
            a later pass can go on.
    """

    documents: list[Document]
    rejects: list[Reject]
    rows_end: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What one pass over all sources found.

    Attributes:
        rows: Input rows.
        rejected: Rows among them that are rejected.
        sha256: Of the sources, see `sources.content_sha256`.
        columns: Type of every metadata column.
    """

    rows: int
    rejected: int
    sha256: str
    columns: Mapping[str, ColumnType]


@dataclass(slots=True)
class _FilePlan:
    """What the survey finds in a file and decides for it."""

    file: SourceFile
    stamp: tuple[int, int]  # bytes, time of change
    roles: Roles | None = None  # None: no good row
    first_good: str = ""
    rows: int = 0
    rejected: int = 0


class CorpusReader:
    """Reads documents from files, folders, globs and standard input.

    A row is rejected when it cannot be read, has no id though its file has an id field, is blank
    in title and text, or has a value of the wrong type. A blank line is no row. Without an id field
    anywhere in a file, the id is ``<file name>#<line>``. Damage of a container (a cut gzip
    file, a Parquet page that cannot be read) counts as rejected rows too: with ``on_error="skip"``
    what stands before it is kept, and one reject names the place (for Parquet, one for each row of
    the row group). Standard input is copied to a temporary file first, so that it can be surveyed
    like any other source.

    Args:
        sources: Paths, globs, or ``-``; or one of them.
        fields: Names of the id, text and title fields, where they are not to be detected.
        on_error: Raise at the first bad row, or collect it as a `Reject`.
        columns: Types of metadata columns that are known beforehand, as those of an index; int64
            may still widen to float64.
        widens: Whether float64 would hold all integers of such a column exactly.
        batch_rows: Input rows in a batch; a batch of large rows ends early, at 16 MiB.
        memory_bytes: What the process may take; rows and batches get a share of it, see
            `memory.shares`. None: a row may have 64 MiB in its file.

    Raises:
        CorpusError: There is no source, or one cannot be found.
    """

    def __init__(
        self,
        sources: str | Path | Sequence[str | Path],
        *,
        fields: FieldNames | None = None,
        on_error: Literal["stop", "skip"] = "stop",
        columns: Mapping[str, ColumnType] | None = None,
        widens: Callable[[str], bool] = lambda name: True,
        batch_rows: int = 1024,
        memory_bytes: int | None = None,
    ) -> None:
        if isinstance(sources, (str, Path)):
            sources = [sources]
        if not sources:
            raise CorpusError("No source to read; name a file, a folder, a glob or '-'.")
        if batch_rows < 1:
            raise ValueError(f"batch_rows is {batch_rows}; it must be at least 1.")
        self.on_error = on_error
        self._fields = fields or FieldNames()
        self._known, self._widens = columns, widens
        self._batch_rows, self._batch_bytes = batch_rows, memory.shares(memory_bytes).batch
        self._limit = RowLimit.within(memory_bytes)
        stdin = self._spool_stdin() if "-" in map(str, sources) else None
        self._files = expand(sources, stdin)
        self._plans: list[_FilePlan] = []
        self._columns = Columns(columns, widens)

    @property
    def paths(self) -> list[Path]:
        """The files that are read, those of a folder of text files among them."""
        return [path for file in self._files for path, _ in members(file) if path is not None]

    def reads(self, path: Path) -> bool:
        """Whether a file is read, under any of its names."""
        return path.exists() and same_file(path, self.paths) is not None

    def survey(self) -> Survey:
        """Check every row once, and fix id fields and column types for all of them.

        Raises:
            CorpusError: There is no row at all; with ``on_error="stop"`` also for the first bad
                row, with its place, reason and value.
        """
        self._columns = Columns(self._known, self._widens)
        self._plans = [self._survey_file(file) for file in self._files]
        rows = sum(plan.rows for plan in self._plans)
        if not rows:
            more = f" and {len(self._files) - 1} more" if len(self._files) > 1 else ""
            raise CorpusError(f"{self._files[0].shown}{more}: holds no rows.")
        rejected = sum(plan.rejected for plan in self._plans)
        sha256 = content_sha256(self._files)
        return Survey(rows, rejected, sha256, dict(self._columns.types))

    def batches(self, *, skip_rows: int = 0) -> Iterator[ReadBatch]:
        """Yield all rows in batches, in input order; surveys first when that was not done.

        Args:
            skip_rows: The ``rows_end`` of an earlier batch; the batches after it come out as in an
                uninterrupted pass.

        Raises:
            CorpusError: As `survey`.
        """
        if not self._plans:
            self.survey()
        documents: list[Document] = []
        rejects: list[Reject] = []
        n_bytes, rows = 0, skip_rows
        for item in self._items(skip_rows):
            rows += 1
            if isinstance(item, Reject):
                rejects.append(item)
            else:
                documents.append(item)
                n_bytes += item.held_bytes
            if len(documents) + len(rejects) == self._batch_rows or n_bytes >= self._batch_bytes:
                yield ReadBatch(documents, rejects, rows)
                documents, rejects, n_bytes = [], [], 0
        if documents or rejects:
            yield ReadBatch(documents, rejects, rows)

    def _survey_file(self, file: SourceFile) -> _FilePlan:
        plan = _FilePlan(file, _stamp(file))
        if (names := field_names(file, limit=self._limit)) is not None:
            plan.roles = self._fields.resolve(names, file.shown)
        for row in read_rows(file, limit=self._limit):
            plan.rows += 1
            reject = row if isinstance(row, Reject) else self._learn(row, plan)
            if reject is not None:
                self._refuse(reject)
                plan.rejected += 1
        return plan

    def _learn(self, row: RawRow, plan: _FilePlan) -> Reject | None:
        assert plan.roles is not None  # this row is a good one
        plan.first_good = plan.first_good or row.source
        if plan.roles.id is None and (late := first_id_field(row.values)):
            plan.roles = dataclasses.replace(plan.roles, id=late)
            reason = f"no {late!r}, the id of the row, which {row.source} has"
            self._refuse(Reject(plan.first_good, reason))
            plan.rejected = plan.rows - 1
        try:
            parts = row_parts(row, plan.roles, plan.file.name)
            self._columns.learn(parts.metadata, typed=row.typed)
        except BadRow as bad:
            return bad.at(row.source)
        return None

    def _items(self, skip: int) -> Iterator[Document | Reject]:
        for plan in self._plans:
            if skip >= plan.rows:
                skip -= plan.rows
                continue
            if _stamp(plan.file) != plan.stamp:
                raise CorpusError(f"{plan.file.shown}: changed while it was read. Start again.")
            for row in read_rows(plan.file, skip=skip, limit=self._limit):
                item = row if isinstance(row, Reject) else self._document(row, plan)
                if isinstance(item, Reject):
                    self._refuse(item)
                yield item
            skip = 0

    def _document(self, row: RawRow, plan: _FilePlan) -> Document | Reject:
        assert plan.roles is not None  # the survey saw this row
        try:
            parts = row_parts(row, plan.roles, plan.file.name)
            metadata = self._columns.convert(parts.metadata, typed=row.typed)
        except BadRow as bad:
            return bad.at(row.source)
        return Document(parts.doc_id, parts.text, parts.title, metadata, row.source)

    def _refuse(self, reject: Reject) -> None:
        if self.on_error == "stop":
            raise reject.error("Fix it, or pass --on-error skip.")

    def _spool_stdin(self) -> SourceFile:
        spool = tempfile.NamedTemporaryFile(suffix=".jsonl")  # noqa: SIM115 (lives as long as self)
        weakref.finalize(self, spool.close)
        try:
            shutil.copyfileobj(sys.stdin.buffer, spool, 1 << 20)
            spool.flush()
        except OSError as error:
            reason = f"cannot be copied to {spool.name}: {error.strerror}"
            raise CorpusError(f"<stdin>: {reason}. Set TMPDIR to a folder with room.") from error
        return SourceFile(Path(spool.name), "<stdin>", "stdin", "jsonl")


def _stamp(file: SourceFile) -> tuple[int, int]:
    try:
        state = file.path.stat()
    except OSError as error:
        raise CorpusError(f"{file.shown}: cannot be read: {error.strerror}.") from error
    return state.st_size, state.st_mtime_ns
