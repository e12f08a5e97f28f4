"""``--where``: SQL's answers over typed columns, and refusals that point at the place."""

from __future__ import annotations

import sqlite3
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlglot
from sqlglot import exp

from sbert_search.errors import QueryError
from sbert_search.index.filters import conditions, syntax
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import ColumnType, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.records import Document, MetadataValue
from tests.index.batches import make_batch, some_vectors

COLUMNS: dict[str, ColumnType] = {
    "year": "int64",
    "price": "float64",
    "lang": "string",
    "open": "bool",
    "day": "date",
    "seen": "timestamp",
    "a.b": "int64",
    "my col": "string",
    "tags": "list[string]",
    "sizes": "list[int64]",
    "days": "list[date]",
}


def values_of(i: int) -> dict[str, MetadataValue]:
    """Every third document lacks each value."""
    values: dict[str, MetadataValue] = {
        "year": 2000 + i,
        "price": i / 4 if i else -0.0,
        "lang": ["en", "de", "100%"][i % 3],
        "open": i % 2 == 0,
        "day": date(2024, 1, 1 + i),
        "seen": datetime(2024, 1, 1 + i, 12, tzinfo=UTC),
    }
    return {name: v for n, (name, v) in enumerate(values.items()) if (i + n) % 3}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """20 documents of two passages each, in two segments; the first segment lacks a column."""
    path = tmp_path_factory.mktemp("filters") / "i"
    store = IndexStore.create(path, Manifest.new(VectorSettings(dim=8), {"year": "int64"}))
    documents = [Document(f"d{i}", "x", title=f"T{i}", metadata=values_of(i)) for i in range(20)]
    old = [Document("old1", "x", metadata={"year": 2005}), Document("old2", "x")]
    with store.writer() as writer:
        writer.commit(make_batch(old, some_vectors(4), [2, 2]))
        writer.add_columns({**COLUMNS, "year": "float64"})
        writer.commit(make_batch(documents, some_vectors(40), [2] * 20))
        writer.delete(["d19"])
    return store.snapshot


def matching(snapshot: Snapshot, where: str) -> set[str]:
    mask = snapshot.filter_mask(where)
    rows = np.concatenate([s.rows[m] for s, m in zip(snapshot.segments, mask.parts, strict=True)])
    assert mask.n_rows == len(rows) == 2 * mask.n_docs  # every passage of each document
    return {passage.document.doc_id for passage in snapshot.fetch(rows)}


@pytest.mark.parametrize(
    "where",
    [
        "year >= 2005",
        "2005 < year",
        "NOT year >= 2005",
        "year IN (2003, 2004.0, -7)",
        "NOT year IN (2003, 2004)",
        "year BETWEEN 2003 AND 2010 AND lang = 'en'",
        "lang <> 'en' OR price < 2",
        "lang LIKE '%e'",
        "lang LIKE '100%' OR lang LIKE '_n'",
        "lang NOT LIKE '%e'",
        "NOT lang LIKE '%e' AND NOT lang NOT LIKE '%'",
        "doc_id NOT LIKE 'd1%'",
        "price IN (0)",
        "price IN (-0.0, 9007199254740993, 1.5)",
        "year < 1" + "0" * 310,
        "year > " + "9" * 5000 + " OR year < -1e400",
        "lang IS NULL",
        "lang IS NOT NULL AND NOT (price > 1.5 OR open)",
        "open",
        "NOT open",
        "open = TRUE",
        "open IS FALSE",
        "year = price",
        "day > '2024-01-05'",
        "seen <= '2024-01-05T12:00:00+00:00'",
        "doc_id = 'd3' OR title IN ('T7', 'T8')",
        "year = 99999999999999999999999 OR price > 1e0",
    ],
)
def test_a_filter_selects_what_sqlite_selects(snapshot: Snapshot, where: str) -> None:
    database = sqlite3.connect(":memory:")
    names = ["year", "price", "lang", "open", "day", "seen"]
    database.execute(f"CREATE TABLE d (doc_id, title, {', '.join(names)})")
    for document in snapshot.iter_documents():
        values = [document.metadata.get(name) for name in names]
        plain = [v.isoformat() if isinstance(v, date) else v for v in values]
        row = [document.doc_id, document.title, *plain]
        database.execute(f"INSERT INTO d VALUES ({', '.join('?' * len(row))})", row)
    expected = {row[0] for row in database.execute(f"SELECT doc_id FROM d WHERE {where}")}
    database.close()
    assert matching(snapshot, where) == expected


def test_search_returns_only_rows_of_the_mask(snapshot: Snapshot) -> None:
    mask = snapshot.filter_mask("year BETWEEN 2004 AND 2006")
    _, rows = snapshot.search(some_vectors(3), 50, mask)
    assert {p.document.doc_id for p in snapshot.fetch(rows[0][rows[0] >= 0])} == matching(
        snapshot, "year BETWEEN 2004 AND 2006"
    )
    assert (rows >= 0).sum(axis=1).tolist() == [mask.n_rows] * 3


def test_the_masks_of_the_last_filters_are_kept(snapshot: Snapshot) -> None:
    masks = [snapshot.filter_mask(f"year > {2000 + i}") for i in range(6)]
    assert snapshot.filter_mask("year > 2005") is masks[5]
    again = snapshot.filter_mask("year > 2000")
    assert again is not masks[0]
    assert all((a == b).all() for a, b in zip(again.parts, masks[0].parts, strict=True))
    assert len(snapshot._masks) == 4


def test_ilike_and_quoted_and_dotted_names(snapshot: Snapshot) -> None:
    everything = {document.doc_id for document in snapshot.iter_documents()}
    assert matching(snapshot, "title NOT ILIKE 't1_'") == everything - {
        f"d{i}" for i in range(10, 19)
    }
    assert matching(snapshot, "title ILIKE 't1_'") == {f"d{i}" for i in range(10, 19)}
    assert matching(snapshot, "\"my col\" = 'x' OR a.b = 3") == set()


@pytest.mark.parametrize(
    ("where", "reason", "at"),
    [
        ("yaer >= 2019", r"Unknown column 'yaer'; did you mean 'year'\?\n", 0),
        ('lang = "en"', r"Unknown column 'en'; .*; a text is written in single quotes, 'en'", 7),
        ("lang = french", r"Unknown column 'french'; .*; a text is .* quotes, 'french'", 7),
        ("year >= 2019 AND lower(year) = 'en'", r"lower\(\) needs a text column", 23),
        ("lower(upper(lang)) = 'en'", r"lower\(\) needs a text column", 6),
        ("trim(lang) = 'en'", "needs the name of a column here", 5),
        ("lower(lang)", r"lower\(\) and upper\(\)", 0),
        ("lang = lower('EN')", "needs the name of a column here", 13),
        ("tags = 'x'", "'tags' is a list; write 'x' IN tags for the lists that contain", 0),
        ("'x' = tags", "'tags' is a list; write 'x' IN tags", 6),
        ("tags IN ('x', 'y')", "'tags' is a list; write 'x' IN tags", 0),
        ("year = 1 OR sizes > 3", "'sizes' is a list; write 5 IN sizes", 12),
        ("tags LIKE 'x%'", "'tags' is a list; write 'x' IN tags", 0),
        ("days BETWEEN '2024-01-01' AND '2024-01-02'", "write '2024-12-31' IN days", 0),
        ("tags = days", "'tags' is a list; write", 0),
        ("lang = tags", "'tags' is a list; write", 7),
        ("tags", "'tags' is a list; write", 0),
        ("'x' IN lang", "'lang' is string, not a list; compare it by =", 7),
        ("lang IN tags", "write a value before IN, as in 'x' IN tags", 0),
        ("'x' IN (tags)", "write a list column without parentheses: 'x' IN tags", 8),
        ("NULL IN tags", "no value equals NULL", 8),
        ("3 IN tags", "the column is string; compare it with text in single quotes", 0),
        ("'x' IN sizes", "the column is int64; compare it with a number", 0),
        ("'2024-02-30' IN days", "'2024-02-30' is not a date; write it as YYYY-MM-DD", 0),
        ("'x' IN lower(sizes)", r"lower\(\) needs a text column", 13),
        ("'x' IN unknown", "Unknown column 'unknown'", 7),
        ("year + 1 > 3", "needs the name of a column here", 0),
        ("year > price + 1", "compare it with a number", 7),
        ("year IN (SELECT 1)", "filters support columns", 0),
        ("year = 'x'", "the column is int64; compare it with a number", 7),
        ("lang = 3", "the column is string; compare it with text in single quotes", 7),
        ("open = 1", "compare it with TRUE or FALSE", 7),
        ("year = NULL", "write IS NULL", 0),
        ("year", "'year' is int64; compare it with a value", 0),
        ("1 = 1", "needs the name of a column", 0),
        ("lang = day", "a string column cannot be compared with a date column", 7),
        ("day > 'soon'", "'soon' is not a date; write it as YYYY-MM-DD", 6),
        ("year > 1 AND", "it is incomplete: a value or a condition is missing after AND", 9),
        ("year >", "it is incomplete: a value or a condition is missing after >", 5),
        ("year > 1;\nlang = 'x'", "filters support columns", 0),
        ("year > 1 AND\nlang == = 'x'", "it is not a condition here", 21),
        ("lang = 'x", "a quote is not closed", 7),
        ("lang = x/*", "a comment begins here; write a text in single quotes", 8),
        ("lang LIKE 'x' ESCAPE '!'", "filters support columns", 0),
        ("year LIKE 'x'", "LIKE needs a text column", 0),
        ("SELECT 1", "it is not a condition here", 0),
        ("lang = '\udcff'", "it is not valid UTF-8 here", 8),
        ("year > 1e", "'1e' is not a number", 7),
        ("year > ²", "Unknown column", 7),
        ("year > 1 -- more", "filters cannot have comments", 7),
        ("lang LIKE '" + "_" * 90_000 + "'", "more than 10,000 characters", 10),
        ("lang LIKE 'x\\'", "a backslash at the end", 10),
        ("seen > '2024-01-01T00:00:00.1234567'", "is not a timestamp", 7),
        ("seen > '0001-01-01T00:00:00+23:59'", "is not a timestamp", 7),
        ("seen > '1611122912345'", "is not a timestamp", 7),
        ("year BETWEEN SYMMETRIC 9 AND 2", "filters support columns", 0),
        ("lang LIKE ANY ('x', 'y')", "compare it with text in single quotes", 15),
        ("lang COLLATE nocase = 'x'", "needs the name of a column here", 0),
        ("year::text = '1'", "needs the name of a column here", 0),
        ("year IS DISTINCT FROM 1", "filters support columns", 0),
        ("Year > 1", r"Unknown column 'Year'; did you mean 'year'\?", 0),
    ],
)
def test_what_filters_cannot_do_is_refused_and_pointed_at(where: str, reason: str, at: int) -> None:
    with pytest.raises(QueryError, match=reason) as refused:
        conditions.parse(where, COLUMNS)
    *_, line, mark = str(refused.value).split("\n")
    before = where[:at]
    whole = where.split("\n")[before.count("\n")].encode(errors="backslashreplace").decode()
    assert line == "  " + (whole if len(whole) <= 160 else whole[:160] + "...")
    assert mark == "  " + " " * (at - before.rfind("\n") - 1) + "^"


def test_leading_zeros_of_a_number_are_ignored(snapshot: Snapshot) -> None:
    zeros = "0" * 5_000
    assert matching(snapshot, f"year = {zeros}2005") == matching(snapshot, "year = 2005") != set()
    assert matching(snapshot, f"year > -{zeros}1 AND year > {zeros}") == matching(
        snapshot, "year > 0"
    )


def test_long_operators_are_shortened_in_the_message() -> None:
    with pytest.raises(QueryError) as refused:
        conditions.parse("year " + "<=>" * 2_000, COLUMNS)
    reason, *_ = str(refused.value).split("\n")
    assert reason.endswith("a condition is missing after " + ("<=>" * 27)[:80] + "...")


def test_a_long_line_is_shown_around_the_place() -> None:
    where = "lang = 'x' OR " * 300 + "yaer = 1" + " OR lang = 'x'" * 300
    with pytest.raises(QueryError, match="did you mean 'year'") as refused:
        conditions.parse(where, COLUMNS)
    *_, line, mark = str(refused.value).split("\n")
    assert line[mark.index("^") :].startswith("yaer = 1 OR")
    assert len(line) == 2 + 160 + 6
    assert line.strip().startswith("...")
    assert line.endswith("...")


@pytest.mark.parametrize("where", [b"year > 1", 5, None, ["year > 1"]])
def test_what_is_no_text_is_refused(where: Any) -> None:
    with pytest.raises(QueryError, match="it must be text such as"):
        conditions.parse(where, COLUMNS)


ONE_OF_EACH = """NOT (year >= -1 AND lang LIKE 'x' OR title ILIKE 'y') OR year IN (1) OR price <> 1
    OR 'x' IN tags OR lower(lang) = upper(lang)
    OR open IS TRUE OR lang IS NULL OR year BETWEEN 1 AND 2 OR a.b = 1 OR year < 1 OR year <= 1
    OR year > 1"""


def test_a_node_with_an_argument_that_is_not_read_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As sqlglot 30 did with NOT LIKE, any version may say something new in a new argument."""
    parse = sqlglot.parse_one
    nodes = list(parse(ONE_OF_EACH, into=exp.Condition).walk())
    assert {type(node) for node in nodes} == set(syntax._READ)
    conditions.parse(ONE_OF_EACH, COLUMNS)
    for number in range(len(nodes)):

        def newer(where: str, into: type[exp.Expr], number: int = number) -> exp.Expr:
            tree = parse(where, into=into)
            if where == ONE_OF_EACH:
                list(tree.walk())[number].args["unheard_of"] = True
            return tree

        monkeypatch.setattr(sqlglot, "parse_one", newer)
        with pytest.raises(QueryError, match="filters support columns"):
            conditions.parse(ONE_OF_EACH, COLUMNS)


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Documents with lists, in two segments of which the first lacks the columns."""
    path = tmp_path_factory.mktemp("lists") / "i"
    store = IndexStore.create(path, Manifest.new(VectorSettings(dim=8)))
    rows: dict[str, dict[str, MetadataValue]] = {
        "a": {"tags": ["Red", "mill"], "sizes": [1, 2**53 + 1], "days": [date(2024, 1, 31)]},
        "b": {"tags": ["ÉTÉ"], "sizes": [-7]},
        "c": {"tags": [], "days": []},
        "d": {"tags": ["mill", "mill"], "days": [date(2024, 1, 31), date(1, 1, 1)]},
        "e": {},
    }
    documents = [Document(name, "x", metadata=row) for name, row in rows.items()]
    with store.writer() as writer:
        writer.commit(make_batch([Document("old", "x")], some_vectors(2), [2]))
        writer.add_columns({n: k for n, k in COLUMNS.items() if k.startswith("list")})
        writer.commit(make_batch(documents, some_vectors(10), [2] * 5))
    return store.snapshot


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("'mill' IN tags", "a d"),
        ("'mill' NOT IN tags", "b c"),
        ("NOT 'mill' IN tags", "b c"),
        ("'Mill' IN tags", ""),
        ("'red' IN lower(tags)", "a"),
        ("'été' IN lower(tags) OR 'RED' IN upper(tags)", "a b"),
        ("tags IS NULL", "old e"),
        ("tags IS NOT NULL", "a b c d"),
        ("lower(tags) IS NULL", "old e"),
        ("9007199254740993 IN sizes", "a"),
        ("9007199254740992 IN sizes OR 9007199254740993.0 IN sizes", ""),
        ("-7.0 IN sizes", "b"),
        ("-7.5 NOT IN sizes", "a b"),
        ("'2024-01-31' IN days AND 'Red' NOT IN tags", "d"),
        ("'0001-01-01' NOT IN days", "a c"),
        ("'mill' IN tags IS NULL OR 1 = 1", None),
        ("lower(doc_id) = 'a' OR upper(doc_id) IN ('B', 'c')", "a b"),
        ("upper(doc_id) BETWEEN 'B' AND 'C' AND lower(doc_id) LIKE '%'", "b c"),
        ("lower(doc_id) = doc_id AND lower(doc_id) < upper(doc_id)", ""),
    ],
)
def test_lists_and_cases(lists: Snapshot, where: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(QueryError):
            matching(lists, where)
    else:
        assert matching(lists, where) == set(expected.split())


def test_lower_maps_each_character_to_one(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8)))
    titles = ["STRASSE", "Straße", "İ", "ΟΔΟΣ"]
    documents = [Document(f"d{i}", "x", title=title) for i, title in enumerate(titles)]
    with store.writer() as writer:
        writer.commit(make_batch(documents, some_vectors(8), [2] * 4))
    for where, expected in (
        ("lower(title) = 'straße'", {"d1"}),
        ("lower(title) = 'strasse'", {"d0"}),
        ("lower(title) = 'i'", {"d2"}),
        ("lower(title) = 'οδοσ'", {"d3"}),
    ):
        assert matching(store.snapshot, where) == expected, where


@pytest.mark.thorough
def test_a_chain_of_thousands_is_no_nesting(snapshot: Snapshot) -> None:
    chain = " OR ".join(f"year = {year}" for year in range(2005, 7000))
    assert matching(snapshot, chain) == matching(snapshot, "year >= 2005")


def test_deletion_takes_what_the_filter_selects_and_no_more(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8)))
    titles = ["keep one", "drop", "keep two", ""]
    with store.writer() as writer:
        documents = [Document(f"d{i}", "x", title=title) for i, title in enumerate(titles)]
        writer.commit(make_batch(documents, some_vectors(4)))
        assert writer.delete_where("title NOT LIKE 'keep%'") == 2
    assert [document.title for document in store.snapshot.iter_documents()] == titles[::2]


def test_columns_named_like_words_of_sql_are_to_be_quoted() -> None:
    columns: dict[str, ColumnType] = {"when": "string", "a-b": "int64", "year": "int64"}
    for where, quoted in (("when > '2019'", '"when"'), ("year = 1 AND a-b = 1", '"a-b"')):
        with pytest.raises(QueryError, match=f"; write {quoted} in double quotes."):
            conditions.parse(where, columns)
    for where in ("year >", '"when" >', "'when' = year >"):
        with pytest.raises(QueryError, match=r"missing after >\.\n"):
            conditions.parse(where, columns | {"": "int64"})


@pytest.mark.parametrize("where", ["", "  ", "(" * 5000, "NOT " * 5000 + "open", "x" * 200_000])
def test_hostile_conditions_are_refused(where: str) -> None:
    with pytest.raises(QueryError):
        conditions.parse(where, COLUMNS)


def test_filters_run_without_torch_or_faiss(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from sbert_search.index import store, filters\n"
        "assert not {'torch', 'faiss', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_metadata_column_named_as_a_document_s_own_is_told_apart(tmp_path: Path) -> None:
    columns: dict[str, ColumnType] = {"doc_id": "string", "title": "int64", "year": "int64"}
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8), columns))
    documents = [
        Document("a", "x", title="T", metadata={"doc_id": "b", "title": 1}),
        Document("b", "x", title="U", metadata={"doc_id": "a"}),
    ]
    with store.writer() as writer:
        writer.commit(make_batch(documents, some_vectors(4), [2, 2]))
    for where, expected in (
        ("meta.doc_id = 'b'", {"a"}),
        ("own.doc_id = 'b'", {"b"}),
        ("meta.title = 1 AND own.title = 'T'", {"a"}),
        ("meta.title IS NULL", {"b"}),
    ):
        assert matching(store.snapshot, where) == expected, where
    for where in ("doc_id = 'b'", "year > 1 OR title = 1"):
        with pytest.raises(QueryError, match=r"write meta\.(doc_id|title) or own\.(doc_id|title)"):
            store.snapshot.filter_mask(where)


def test_a_metadata_column_may_begin_like_a_prefix(tmp_path: Path) -> None:
    columns: dict[str, ColumnType] = {"meta.title": "string", "own.title": "string"}
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8), columns))
    documents = [
        Document("a", "x", title="T", metadata={"meta.title": "x", "own.title": "y"}),
        Document("b", "x", title="x", metadata={"own.title": "T"}),
    ]
    with store.writer() as writer:
        writer.commit(make_batch(documents, some_vectors(4), [2, 2]))
    for where, expected in (
        ("meta.title = 'x'", {"a"}),
        ("meta.title IS NULL", {"b"}),
        ("own.title = 'y'", {"a"}),
        ("own.title = 'T'", {"b"}),
        ("title = 'T'", {"a"}),
    ):
        assert matching(store.snapshot, where) == expected, where


def test_a_name_with_two_meanings_is_refused(tmp_path: Path) -> None:
    columns: dict[str, ColumnType] = {"title": "string", "meta.title": "string"}
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8), columns))
    document = Document("a", "x", metadata={"title": "t"})
    with store.writer() as writer:
        writer.commit(make_batch([document], some_vectors(2), [2]))
    with pytest.raises(QueryError, match=r"meta\.title' is a metadata column, and also"):
        matching(store.snapshot, "meta.title = 't'")
    assert matching(store.snapshot, "own.title = ''") == {"a"}


@pytest.mark.parametrize(
    ("name", "where"),
    [("lang", "'{}' <= lang"), ("my col", "\"my col\" IN ('x', '{}')"), ("tags", "'{}' IN tags")],
)
def test_a_time_that_is_compared_as_text_is_one_warning(
    snapshot: Snapshot, name: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in ("2025-02-03T12:45:46Z", "2025-02-03 12:45"):
        snapshot.filter_mask(where.format(value))
    shown = capsys.readouterr().err
    assert shown.count("compared with a time as text") == 1, shown
    assert f"--column-type {name}=timestamp" in shown


def test_dates_as_text_and_times_as_times_are_no_warning(
    snapshot: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    for where in ("title >= '2025-02-03'", "seen > '2025-02-03T12:45:46Z'", "title = 'T12:45'"):
        snapshot.filter_mask(where)
    assert capsys.readouterr().err == ""
