"""Run a query on a SQLite or DuckDB file, which is opened read-only."""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, cast

import pyarrow as pa

from sbert_search.base.options import if_offered
from sbert_search.corpus.formats.rows import excerpt
from sbert_search.errors import CorpusError

BLOCK_ROWS = 1024  # rows of a DuckDB result that are in memory at a time

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

Batches = Iterator[pa.RecordBatch]


class _Relation(Protocol):
    """The members of a DuckDB relation that this module uses."""

    @property
    def columns(self) -> list[str]: ...

    def fetchall(self) -> list[tuple[str]]: ...

    def to_arrow_reader(self, batch_size: int, /) -> pa.RecordBatchReader: ...


class _Connection(Protocol):
    """The methods of a DuckDB connection that this module uses."""

    def sql(self, query: str) -> _Relation | None: ...

    def extract_statements(self, query: str) -> list[object]: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def query_result(
    path: Path, shown: str, query: str | None
) -> Iterator[Iterator[Mapping[str, object]] | Batches]:
    """Run a query and yield its rows: mappings from SQLite, record batches from DuckDB.

    The query is one statement and so one transaction: later writes to the database do not change
    its rows. A SQLite query may only read tables of this file. A DuckDB query has no access to
    other files.

    Args:
        path: The database.
        shown: Its name in messages.
        query: A SELECT statement; None: all rows of the only table or view.

    Raises:
        CorpusError: The file cannot be read or is no such database; the package duckdb is not
            installed; the query fails, has several statements or returns no columns; two columns of
            the result have the same name; or there is no query, and the number of tables and views
            is not one.
    """
    opened = _duckdb(path, shown, query) if _is_duckdb(path, shown) else _sqlite(path, shown, query)
    with opened as rows:
        yield rows


@contextlib.contextmanager
def _sqlite(path: Path, shown: str, query: str | None) -> Iterator[Iterator[Mapping[str, object]]]:
    with _errors(shown, query, (sqlite3.Error, sqlite3.Warning)):
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            # Invalid UTF-8 becomes lone surrogates, so that later only its own row is rejected.
            connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
            connection.set_authorizer(_only_reading)
            tables = [str(name) for (name,) in connection.execute(_SQLITE_TABLES)]
            cursor = connection.execute(_whole_table(tables, shown) if query is None else query)
            names = [column[0] for column in cursor.description or ()]
            _require_columns(names, shown, query)
            yield (dict(zip(names, row, strict=True)) for row in cursor)


@contextlib.contextmanager
def _duckdb(path: Path, shown: str, query: str | None) -> Iterator[Batches]:
    try:
        duckdb = importlib.import_module("duckdb")
    except ImportError:
        raise CorpusError(
            f"{shown}: reading DuckDB files needs the package duckdb; install it with "
            "`pip install 'sbert-search[duckdb]'`."
        ) from None
    connect = cast(Callable[..., _Connection], duckdb.connect)
    config = {"enable_external_access": "false", "lock_configuration": "true"}
    with _errors(shown, query, (cast(type[Exception], duckdb.Error),)):
        connection = connect(str(path), read_only=True, config=config)
        with contextlib.closing(connection):
            tables = connection.sql(_DUCKDB_TABLES)
            names = [name for (name,) in tables.fetchall()] if tables else []
            if query is not None and len(connection.extract_statements(query)) > 1:
                raise CorpusError(
                    f"{shown}: the query {excerpt(query)} has several statements; pass one SELECT."
                )
            relation = connection.sql(_whole_table(names, shown) if query is None else query)
            _require_columns(relation.columns if relation else [], shown, query)
            assert relation is not None
            yield _batches(relation, shown, query)


def _batches(relation: _Relation, shown: str, query: str | None) -> Batches:
    # pyarrow raises an OSError where DuckDB fails in the middle of a result.
    with _errors(shown, query, (OSError, pa.ArrowException)):
        yield from relation.to_arrow_reader(BLOCK_ROWS)


def _is_duckdb(path: Path, shown: str) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise CorpusError(f"{shown}: cannot be read: {error.strerror}.") from error
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
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise CorpusError(
            f"{shown}: the query has two columns {repeated[0]!r}; rename one with AS."
        )
