"""Rows of SQLite and DuckDB files: all rows of one state, and no way to change the file."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import sqlite3
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from sbert_search import Index, errors
from sbert_search.base import files
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader

BOOKS: list[tuple[Any, ...]] = [
    ("a", "Mills", "A wheel turns.", 1987, 2.5),
    ("b", None, "Flour and é.", None, None),
    ("c", "Seas", "", 2**63 - 1, -0.5),
]
QUERY = "SELECT id, title, body AS text, year FROM books WHERE year IS NOT NULL ORDER BY id DESC"
CREATE = "CREATE TABLE {} (id VARCHAR, title VARCHAR, body VARCHAR, year BIGINT, price DOUBLE)"


@pytest.fixture(params=["sqlite", "duckdb"])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"library.{request.param}"
    fill(path, "books", BOOKS)
    return path


def fill(path: Path, table: str, rows: list[tuple[Any, ...]]) -> None:
    connect = sqlite3.connect if path.suffix == ".sqlite" else duckdb().connect
    with contextlib.closing(connect(str(path))) as connection:
        connection.execute(CREATE.format(table))
        connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", rows)
        if path.suffix == ".sqlite":
            connection.commit()


def duckdb() -> Any:
    return importlib.import_module("duckdb")


def read(path: Path, **options: Any) -> list[Document]:
    return [doc for batch in CorpusReader(path, **options).batches() for doc in batch.documents]


def test_a_query_gives_the_rows(library: Path) -> None:
    documents = read(library, query=QUERY)
    assert [(d.doc_id, d.title, d.text, d.metadata) for d in documents] == [
        ("c", "Seas", "", {"year": 2**63 - 1}),
        ("a", "Mills", "A wheel turns.", {"year": 1987}),
    ]
    assert [d.source for d in documents] == [f"{library}:1", f"{library}:2"]
    numbered = read(library, query="SELECT body AS text FROM books WHERE id < 'c' ORDER BY id")
    assert [d.doc_id for d in numbered] == [f"{library.name}#1", f"{library.name}#2"]


def test_the_only_table_is_read_without_a_query(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = read(library)
    assert [d.metadata for d in documents] == [
        {"year": 1987, "price": 2.5},
        {},
        {"year": 2**63 - 1, "price": -0.5},
    ]
    fill(library, "loans", BOOKS[:1])
    with pytest.raises(CorpusError, match=r"has the tables books, loans\. Say what to read with"):
        read(library)
    monkeypatch.setattr(errors, "offered", {"--out"})
    with pytest.raises(CorpusError, match=r"books, loans\. Export the rows to JSON lines\.$"):
        read(library)


def test_a_query_without_rows_is_a_source_without_rows(library: Path) -> None:
    with pytest.raises(CorpusError, match=r"library\.\w+: holds no rows"):
        read(library, query="SELECT id, body AS text FROM books WHERE id = 'z'")


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM books",
        "INSERT INTO books (id) VALUES ('z')",
        "UPDATE books SET title = 'x' RETURNING id",
        "DROP TABLE books",
        "CREATE TABLE more (a INT)",
        "ATTACH '{}/other.db' AS other",
        "PRAGMA user_version = 5",
        "COPY books TO '{}/copy.csv'",
        "SELECT * FROM read_text('{}/secret.txt')",
        "SELECT load_extension('{}/secret.txt')",
        "SELECT 1 FROM books; DELETE FROM books",
        "SELEC id FROM books",
        "SELECT id FROM nowhere",
        "SELECT id, title AS id FROM books",
        "",
        "-- nothing",
        "BEGIN",
    ],
)
def test_nothing_but_one_select_runs(library: Path, query: str) -> None:
    folder = library.parent
    (folder / "secret.txt").write_text("secret")
    before = sorted(folder.iterdir()), hashlib.sha256(library.read_bytes()).hexdigest()
    with pytest.raises(CorpusError, match=r"(?s)library\.(sqlite|duckdb): the (query|database)"):
        read(library, query=query.format(folder))
    assert (sorted(folder.iterdir()), hashlib.sha256(library.read_bytes()).hexdigest()) == before


def test_an_error_in_the_middle_of_a_result_names_the_query(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    with contextlib.closing(duckdb().connect(str(path))) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT 'text ' || i AS text, "
            "CASE WHEN i = 5000 THEN 'x' ELSE i::VARCHAR END AS n FROM range(6000) AS r(i)"
        )
    with pytest.raises(CorpusError, match=r"a\.duckdb: the query 'SELECT .* cannot be run: .*'x'"):
        read(path, query="SELECT text, n::INT AS n FROM t")


def test_a_full_text_table_of_sqlite_is_read_but_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE VIRTUAL TABLE t USING fts5(id, text)")
        connection.execute("INSERT INTO t VALUES ('a', 'A wheel turns.')")
        connection.commit()
    before = path.read_bytes()
    (document,) = read(path, query="SELECT id, text FROM t WHERE t MATCH 'wheel'")
    assert (document.doc_id, document.text) == ("a", "A wheel turns.")
    for query in ("INSERT INTO t (t) VALUES ('optimize')", "UPDATE sqlite_master SET sql = 'x'"):
        with pytest.raises(CorpusError, match="cannot be run"):
            read(path, query=query)
    assert path.read_bytes() == before


def test_files_that_are_no_database_are_refused(tmp_path: Path) -> None:
    for name, data in (("a.db", b""), ("b.sqlite", b"text" * 100), ("c.duckdb", b"x")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorpusError, match=r"neither a SQLite nor a DuckDB database"):
            read(tmp_path / name)
    (tmp_path / "d.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    with pytest.raises(CorpusError, match=r"d\.db: cannot be read: .* Repair the database"):
        read(tmp_path / "d.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "e.db")) as connection:
        connection.execute("PRAGMA user_version = 1")
    with pytest.raises(CorpusError, match=r"e\.db: the database has no tables"):
        read(tmp_path / "e.db")


def test_a_query_needs_a_database(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(ConfigError, match=r"SQLite or DuckDB file, whose name ends in \.sqlite"):
        read(tmp_path / "a.jsonl", query="SELECT 1")
    with pytest.raises(ConfigError, match="not rows in memory"):
        CorpusReader([{"text": "x"}], query="SELECT 1")


def test_a_text_that_is_not_utf8_rejects_its_row(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    fill(path, "books", BOOKS[:1])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO books VALUES ('z', 't', CAST(x'61ff' AS TEXT), 'many', 1)")
        connection.commit()
    query = "SELECT id, title, body AS text, price FROM books"
    reader = CorpusReader(path, query=query, on_error="skip")
    (batch,) = reader.batches()
    assert [d.doc_id for d in batch.documents] == ["a"]
    assert [(r.source, r.reason) for r in batch.rejects] == [
        (f"{path}:2", "invalid UTF-8 or a lone surrogate in 'text'")
    ]


def test_columns_of_duckdb_keep_their_types(tmp_path: Path) -> None:
    path = tmp_path / "x.duckdb"
    with contextlib.closing(duckdb().connect(str(path))) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id, 'x' AS text, ['p', 'q'] AS tags, "
                           "DATE '2024-01-31' AS day, sum(5) AS total")  # fmt: skip
    (document,) = read(path)
    assert document.metadata == {"tags": ["p", "q"], "day": date(2024, 1, 31), "total": 5.0}


def test_a_large_result_is_streamed_in_order(library: Path) -> None:
    query = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
        "SELECT i AS id, 'text ' || i AS text FROM n ORDER BY i"
    )
    reader = CorpusReader(library, query=query)
    assert reader.survey().rows == 5000
    ids = [doc.doc_id for batch in reader.batches(skip_rows=2048) for doc in batch.documents]
    assert ids == [str(i) for i in range(2049, 5001)]


def test_an_interrupted_build_resumes_and_updates_take_other_queries(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "SELECT id, body AS text, year FROM books WHERE body <> '' ORDER BY id"
    replace, calls = files.disk.replace, 0

    def failing(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device")
        replace(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(files.disk, "replace", failing)
        with pytest.raises(Exception, match="No space"):
            Index.build(library, out=tmp_path / "i", query=query, model="hashing")
    index = Index.build(library, out=tmp_path / "i", query=query, model="hashing")
    assert [d.doc_id for d in index] == ["a", "b"]
    assert index.read_settings.query is None
    counts = index.upsert(
        library, query="SELECT id, 'new' AS text FROM books WHERE id > 'a'"
    ).counts
    assert (counts.indexed, counts.replaced, counts.rejected) == (1, 1, 0)
