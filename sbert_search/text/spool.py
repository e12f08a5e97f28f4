"""Copy rows that can be read only once, such as those of a database query, to a temporary file.

The build of an index reads its source at least twice: first to check every row, then to embed the
documents. A build that resumes after an interruption reads the source again.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sqlite3
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from glob import iglob
from itertools import chain, zip_longest
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias, cast

import pyarrow as pa

from sbert_search.base.options import if_offered
from sbert_search.base.progress import progress
from sbert_search.errors import ConfigError, CorpusError, install
from sbert_search.records import Document
from sbert_search.text.formats.rows import BLOCK_ROWS, excerpt, repeated_name
from sbert_search.text.formats.spooled import write_batches, write_rows
from sbert_search.text.sources import FORMATS, Root, SourceFile, TextAs, expand, named_read_errors

_SQLITE = b"SQLite format 3\0"  # the first bytes of a SQLite file
_DUCKDB = b"DUCK"  # bytes 8 to 11 of a DuckDB file, counted from 0
_ALLOWED = {  # the actions that a SQLite statement may take; all others are denied
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
# SQLite takes these actions itself when it opens a virtual table, such as one of FTS5. The file is
# read-only, so nothing is written.
_OF_VIRTUAL_TABLES = {
    (sqlite3.SQLITE_UPDATE, "sqlite_master"),
    (sqlite3.SQLITE_PRAGMA, "data_version"),
}
_SQLITE_TABLES = (
    "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite!_%' "
    "ESCAPE '!' ORDER BY name"
)
_DUCKDB_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main' "
    "ORDER BY table_name"
)


def _sqlite_rows(path: Path, shown: str, query: str | None) -> Iterator[Mapping[str, object]]:
    """Run a query, or read the only table or view, of a SQLite file.

    The query is one statement and so one transaction: later writes to the database do not change
    its rows. It may only read tables of this file.
    """
    with (
        _errors(shown, query, (sqlite3.Error, sqlite3.Warning)),
        contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection,
    ):
        # Invalid UTF-8 becomes lone surrogates, so that later only its own row is rejected.
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        connection.set_authorizer(_only_reading)
        tables = [str(name) for (name,) in connection.execute(_SQLITE_TABLES)]
        cursor = connection.execute(_whole_table(tables, shown) if query is None else query)
        names = [column[0] for column in cursor.description or ()]
        _require_columns(names, shown, query)
        for row in cursor:
            yield dict(zip(names, row, strict=True))


def _duckdb_batches(path: Path, shown: str, query: str | None) -> Iterator[pa.RecordBatch]:
    """Run a query, which has no access to other files, or read the only table of a DuckDB file."""
    try:
        duckdb = importlib.import_module("duckdb")
    except ImportError:
        raise CorpusError(
            f"{shown}: reading DuckDB files needs the package duckdb: {install('duckdb')}."
        ) from None
    config = {"enable_external_access": "false", "lock_configuration": "true"}
    with (
        # pyarrow raises an OSError where DuckDB fails in the middle of a result.
        _errors(shown, query, (duckdb.Error, OSError, pa.ArrowException)),
        contextlib.closing(duckdb.connect(str(path), read_only=True, config=config)) as connection,
    ):
        names = [name for (name,) in connection.sql(_DUCKDB_TABLES).fetchall()]
        run = _whole_table(names, shown) if query is None else query
        statements = connection.extract_statements(run)
        if len(statements) > 1:
            raise CorpusError(
                f"{shown}: the query {excerpt(query)} has several statements; pass one SELECT."
            )
        relation = connection.sql(run)
        # Of a statement such as BEGIN, DuckDB too makes a relation with a column.
        results = [kind for statement in statements for kind in statement.expected_result_type]
        selects = duckdb.ExpectedResultType.QUERY_RESULT in results
        _require_columns(relation.columns if selects else [], shown, query)
        yield from relation.to_arrow_reader(BLOCK_ROWS)


def _is_duckdb(path: Path, shown: str) -> bool:
    with named_read_errors(shown), path.open("rb") as file:
        start = file.read(16)
    if start != _SQLITE and start[8:12] != _DUCKDB:
        raise CorpusError(f"{shown}: neither a SQLite nor a DuckDB database. Export its rows.")
    return start != _SQLITE


def _only_reading(action: int, first: str | None, *_: object) -> int:
    allowed = action in _ALLOWED or (action, first) in _OF_VIRTUAL_TABLES
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@contextlib.contextmanager
def _errors(shown: str, query: str | None, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        reason = " ".join(str(error).split()).rstrip(".")
        if query is None:
            message = f"cannot be read: {reason}. Repair the database, or read a copy of it."
        else:
            remedy = "Pass one SELECT statement that reads this file."
            message = f"the query {excerpt(query)} cannot be run: {reason}. {remedy}"
        raise CorpusError(f"{shown}: {message}") from error


def _whole_table(tables: list[str], shown: str) -> str:
    if len(tables) == 1:
        quoted = tables[0].replace('"', '""')
        return f'SELECT * FROM "{quoted}"'
    if not tables:
        raise CorpusError(f"{shown}: the database has no tables.")
    remedy = if_offered(
        "--sql",
        f"Say what to read with --sql (query=...), such as 'SELECT * FROM {tables[0]}'.",
        "Export the rows to JSON lines.",
    )
    raise CorpusError(f"{shown}: the database has the tables {', '.join(tables)}. {remedy}")


def _require_columns(names: list[str], shown: str, query: str | None) -> None:
    if not names:
        raise CorpusError(f"{shown}: the query {excerpt(query)} returns no columns; pass a SELECT.")
    if (repeated := repeated_name(names)) is not None:
        raise CorpusError(f"{shown}: the query has two columns {repeated!r}; rename one with AS.")


class ArrowTable(Protocol):
    """A table of pandas, polars, pyarrow, DuckDB or any other library with Arrow's C interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the table as a stream of record batches."""


Paths: TypeAlias = str | Path | Iterable[str | Path]
"""Files, folders and globs; ``-`` is standard input."""

Rows: TypeAlias = Iterable[Mapping[str, object] | Document] | ArrowTable
"""Documents in memory: a table, or a list or generator of dicts or `Document` objects."""

Sources: TypeAlias = Paths | Rows

ROWS = "rows"  # what messages, `Document.source` and ids call a source of rows in memory


def source_files(
    sources: Sources | SourceFile,
    owner: object,
    *,
    root: Root = "common",
    text_as: TextAs | None = "lines",
    vector: str | None = None,
    query: str | None = None,
) -> list[SourceFile]:
    """List the files to read; copy what can be read only once to a temporary file.

    Standard input, rows in memory and the results of ``query`` on each database are copied. The
    copies are deleted when ``owner`` is garbage-collected. ``vector`` is the field of given
    vectors.
    """
    if isinstance(sources, SourceFile):
        return [sources]
    if isinstance(sources, (str, Path)):
        sources = [sources]
    if hasattr(sources, "__arrow_c_stream__") or hasattr(sources, "with_format"):
        _refuse_query(query)
        return [_spool_rows(cast("Rows", sources), owner, vector)]
    if not isinstance(sources, Iterable) or isinstance(sources, Mapping):
        raise CorpusError(
            f"A source of type {type(sources).__name__} cannot be read; pass paths, a table, or a "
            "list of dicts or documents."
        )
    items = iter(sources)
    first = next(items, None)
    if first is None:
        raise CorpusError("No source to read; name a file, a folder, a glob or '-', or pass rows.")
    if not isinstance(first, (str, Path)):
        rows = chain([first], items) if items is sources else sources
        _refuse_query(query)
        copied = _spool_rows(cast("Rows", rows), owner, vector)
        return [replace(copied, holds_documents=isinstance(first, Document))]
    if isinstance(first, str) and " " in first and not (os.path.exists(first) or any(iglob(first))):
        raise CorpusError(
            f"{excerpt(first)} is no file, folder or pattern of files. To index texts, pass "
            "rows such as {'text': ...}, or make a new index with `Index.from_texts`."
        )
    paths = cast("list[str | Path]", [first, *items])
    stdin = _spool_stdin(owner) if "-" in map(str, paths) else None
    return _with_query_results(expand(paths, stdin, root=root, text_as=text_as), query, owner)


def text_rows(
    texts: Iterable[str], ids: Iterable[str | int] | None = None
) -> Iterator[dict[str, object]]:
    """Yield a row for each text, with its id or, without ids, its number from 0."""
    if isinstance(texts, str):
        raise CorpusError("These texts are one string; pass a list of texts.")
    absent = object()
    pairs = enumerate(texts) if ids is None else zip_longest(ids, texts, fillvalue=absent)
    for number, (doc_id, text) in enumerate(pairs):
        if doc_id is absent or text is absent:
            fewer, more = ("ids", "texts") if doc_id is absent else ("texts", "ids")
            raise CorpusError(
                f"There are {number:,} {fewer} and more {more}; pass one id for each text."
            )
        yield {"_id": doc_id, "text": text}


def _refuse_query(query: str | None) -> None:
    if query is not None:
        raise ConfigError("query needs the path of a SQLite or DuckDB file, not rows in memory.")


def _spool_rows(rows: Rows, owner: object, vector: str | None) -> SourceFile:
    total = len(rows) if isinstance(rows, Sized) else None
    with _spool(owner, ROWS) as file, progress("Copying rows", total, "rows") as advance:
        if (batches := _record_batches(rows)) is not None:
            write_batches(file, batches, advance)
        else:
            mappings = map(_mapping, cast("Iterable[Mapping[str, object] | Document]", rows))
            write_rows(file, mappings, ROWS, advance, vector)
    return SourceFile(Path(file.name), ROWS, ROWS, "spooled")


def _with_query_results(
    files: list[SourceFile], query: str | None, owner: object
) -> list[SourceFile]:
    if query is not None and not any(file.format == "database" for file in files):
        raise ConfigError(
            f"{files[0].shown}: --sql (query=...) needs a SQLite or DuckDB file, whose name "
            f"ends in {', '.join(n for n, kind in FORMATS.items() if kind == 'database')}."
        )
    return [
        _spool_query(file, query, owner) if file.format == "database" else file for file in files
    ]


def _spool_query(file: SourceFile, query: str | None, owner: object) -> SourceFile:
    with (
        _spool(owner, file.shown) as copy,
        progress("Reading the database", None, "rows") as advance,
    ):
        if _is_duckdb(file.path, file.shown):
            write_batches(copy, _duckdb_batches(file.path, file.shown, query), advance)
        else:
            rows = _sqlite_rows(file.path, file.shown, query)
            write_rows(copy, rows, file.shown, advance)
    return replace(file, path=Path(copy.name), format="spooled", origin=file.path)


def _spool_stdin(owner: object) -> SourceFile:
    with _spool(owner, "<stdin>", ".jsonl") as file, named_read_errors("<stdin>"):
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return SourceFile(Path(file.name), "<stdin>", "stdin", "jsonl")


@contextlib.contextmanager
def _spool(owner: object, shown: str, suffix: str = "") -> Iterator[BinaryIO]:
    with _named_errors(shown, "a temporary file"):
        file = tempfile.NamedTemporaryFile(suffix=suffix)  # noqa: SIM115 (lives as long as its owner)
    weakref.finalize(owner, file.close)
    copy = _Copy(cast(BinaryIO, file), shown)
    try:
        yield cast(BinaryIO, copy)
        copy.flush()
    except BaseException:
        with contextlib.suppress(OSError):  # of bytes in the buffer for which the disk has no room
            file.close()
        raise


class _Copy:
    """A file for a copy of rows: only errors of writing to it advise to set TMPDIR."""

    def __init__(self, file: BinaryIO, shown: str) -> None:
        self._file, self._shown, self.name = file, shown, file.name

    def write(self, data: bytes) -> int:
        with _named_errors(self._shown, self.name):
            return self._file.write(data)

    def flush(self) -> None:
        with _named_errors(self._shown, self.name):
            self._file.flush()


@contextlib.contextmanager
def _named_errors(shown: str, place: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CorpusError(
            f"{shown}: cannot be copied to {place}: {error.strerror}. Set the environment variable "
            "TMPDIR to a folder with more free space."
        ) from error


def _record_batches(rows: Rows) -> Iterable[pa.RecordBatch] | None:
    """Return the record batches of a table; None if the rows are not a table."""
    if hasattr(rows, "__arrow_c_stream__"):
        return map(_without_index, pa.RecordBatchReader.from_stream(rows))
    # The method marks a dataset of the package ``datasets`` (Hugging Face).
    with_format: Callable[[str], object] | None = getattr(rows, "with_format", None)
    if with_format is None:
        return None
    tables = getattr(with_format("arrow"), "iter")(batch_size=BLOCK_ROWS)  # noqa: B009 (has no types)
    return chain.from_iterable(table.to_batches() for table in tables)


def _without_index(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drop the columns in which pandas exports an index that has no name."""
    if (repeated := repeated_name(batch.schema.names)) is not None:
        raise CorpusError(f"The table has two columns {repeated!r}; rename one.")
    kept = [name for name in batch.schema.names if not name.startswith("__index_level_")]
    return batch.select(kept)


def _mapping(row: Mapping[str, object] | Document) -> Mapping[str, object]:
    if not isinstance(row, Document):
        return row
    fields = {"_id": row.doc_id, "title": row.title, "text": row.text}
    if taken := fields.keys() & row.metadata.keys():
        raise CorpusError(
            f"Document {row.doc_id!r} has metadata named {sorted(taken)[0]!r}, which is the name "
            "of a field of every document; rename it."
        )
    return {**fields, **row.metadata}
