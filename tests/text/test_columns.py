"""Types of metadata columns: fixed for a source, whatever the order of its rows."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbert_search import Index
from sbert_search.errors import CorpusError
from sbert_search.text.column_types import ColumnType
from sbert_search.text.columns import Columns, join_types, likely_type, some_texts
from sbert_search.text.documents import CorpusReader
from sbert_search.text.formats.rows import BadRow, Cell
from tests.text.accounting import read_all


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", "-2", "0"], "int64", [1, -2, 0]),
        (["1", "2.5", "-1e3"], "float64", [1.0, 2.5, -1000.0]),
        (["true", "False"], "bool", [True, False]),
        (["9007199254740992", "1.5"], "float64", [2.0**53, 1.5]),
        (["9007199254740993", "1.5", "5"], "string", ["9007199254740993", "1.5", "5"]),
        (["9007199254740993", "5"], "int64", [9007199254740993, 5]),
        (["007", "8"], "string", ["007", "8"]),
        (["1", "one"], "string", ["1", "one"]),
        (["true", "1"], "string", ["true", "1"]),
        (["9223372036854775808"], "string", ["9223372036854775808"]),
        (["1e999"], "string", ["1e999"]),
        (["1_000"], "string", ["1_000"]),
        (["٣"], "string", ["٣"]),
        (["nan", "1"], "string", ["nan", "1"]),
        ([" 1"], "string", [" 1"]),
        (["2020-01-02", "2024-02-29"], "date", [date(2020, 1, 2), date(2024, 2, 29)]),
        (["2020-01-02", "2023-02-29"], "string", ["2020-01-02", "2023-02-29"]),
        (["2020-01-02", "20200102"], "string", ["2020-01-02", "20200102"]),
        (["2020-01-02", "2020-01-02 10:00"], "string", ["2020-01-02", "2020-01-02 10:00"]),
    ],
)
def test_cells_get_the_narrowest_type_in_any_order(
    cells: list[str], kind: ColumnType, values: list[object]
) -> None:
    for order in itertools.permutations(cells):
        columns = Columns()
        for cell in order:
            columns.learn({"n": cell}, typed=False)
        assert columns.types == {"n": kind}
        assert [columns.convert({"n": cell}, typed=False)["n"] for cell in cells] == values


@given(*[st.sampled_from(["string", "int64", "float64", "bool", "date"])] * 3)
def test_joining_types_does_not_depend_on_order(
    a: ColumnType, b: ColumnType, c: ColumnType
) -> None:
    assert join_types(a, b) == join_types(b, a)
    assert join_types(join_types(a, b), c) == join_types(a, join_types(b, c))


@example([0, (1 << 53) + 1, 0.0])
@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(-1e300, 1e300), min_size=1))
def test_typed_numbers_widen_unless_an_integer_would_be_rounded(values: list[float]) -> None:
    columns = Columns()
    fits = []
    for value in values:
        fits.append(False)
        with contextlib.suppress(BadRow):
            columns.learn({"n": value}, typed=True)
            fits[-1] = True
    kept = [value for value, fit in zip(values, fits, strict=True) if fit]
    has_float = any(isinstance(value, float) for value in kept)
    assert columns.types == {"n": "float64" if has_float else "int64"}
    for value, fit in zip(values, fits, strict=True):
        if fit:  # 0 may fit where 0.0 does not, though they are equal
            assert columns.convert({"n": value}, typed=True)["n"] == value  # as exact numbers
        else:
            with pytest.raises(BadRow, match=r"float64.* would round"):
                columns.convert({"n": value}, typed=True)
    rounded = [value for value in values if isinstance(value, int) and float(value) != value]
    assert len(kept) == len(values) or (rounded and fits[0])


def test_integers_of_an_index_are_looked_at_when_their_column_would_widen(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "a", "n": 5}\n{"text": "b", "n": 1.5}\n{"text": "c", "n": 2.5}\n')
    for widens, kept in ((True, [5.0, 1.5, 2.5]), (False, [5])):
        asked: list[str] = []

        def answer(name: str, widens: bool = widens, asked: list[str] = asked) -> bool:
            asked.append(name)
            return widens

        reader = CorpusReader(
            path, columns={"n": "int64", "m": "int64"}, widens=answer, on_error="skip"
        )
        batches = list(reader.batches())
        assert asked == ["n"]
        assert [doc.metadata["n"] for batch in batches for doc in batch.documents] == kept
        rejects = [reject for batch in batches for reject in batch.rejects]
        assert len(rejects) == 3 - len(kept)
        assert {r.reason for r in rejects} <= {
            "column 'n' is of type int64 and cannot become float64, which would round some of its "
            "integers"
        }


def test_a_row_that_does_not_fit_teaches_nothing() -> None:
    columns = Columns()
    columns.learn({"n": 1}, typed=True)
    with pytest.raises(BadRow):
        columns.learn({"new": "x", "n": "one"}, typed=True)
    assert columns.types == {"n": "int64"}


def test_columns_of_an_index_stay_but_may_widen(tmp_path: Path) -> None:
    known: dict[str, ColumnType] = {
        "n": "int64", "s": "string", "t": "timestamp", "d": "date", "unseen": "bool"
    }  # fmt: skip
    rows: list[dict[str, object]] = [
        {"n": 1.5, "s": "x", "t": "2020-01-02T03:04:05+02:00", "d": "2020-01-02"},
        {"t": "2020-01-02 03:04:05", "more": True},
        {"t": "yesterday"},
        {"t": "0001-01-01T00:00:00+23:59"},
        {"d": "2020-01-02T03:04"},
        {"s": 5},
        {"n": "5"},
    ]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"text": "a", **row}) + "\n" for row in rows))
    documents, rejects, survey = read_all(path, columns=known)
    assert survey.columns == {**known, "n": "float64", "more": "bool"}
    assert documents[0].metadata == {
        "n": 1.5,
        "s": "x",
        "t": datetime(2020, 1, 2, 1, 4, 5, tzinfo=UTC),
        "d": date(2020, 1, 2),
    }
    assert documents[1].metadata["t"] == datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert [(reject.reason, reject.value) for reject in rejects] == [
        ("column 't' is of type timestamp, this value is of type string", "'yesterday'"),
        (
            "column 't' is of type timestamp, this value is of type string",
            "'0001-01-01T00:00:00+23:59'",
        ),
        ("column 'd' is of type date, this value is of type string", "'2020-01-02T03:04'"),
        ("column 's' is of type string, this value is of type int64", "5"),
        ("column 'n' is of type float64, this value is of type string", "'5'"),
    ]


def test_typed_and_untyped_sources_meet(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,n,s\na,1,1\nb,2,x\n")
    (tmp_path / "b.jsonl").write_text('{"text": "c", "n": 2.5, "s": "y"}\n')
    (tmp_path / "c.csv").write_text("text,n,s\nd,many,2\ne,3,\n")
    documents, rejects, survey = read_all(*(tmp_path / f for f in ("a.csv", "b.jsonl", "c.csv")))
    assert survey.columns == {"n": "float64", "s": "string"}
    assert [doc.metadata.get("n") for doc in documents] == [1.0, 2.0, 2.5, 3.0]
    assert [doc.metadata.get("s") for doc in documents] == ["1", "x", "y", None]
    assert [reject.reason for reject in rejects] == [
        "column 'n' is of type float64, this value is of type string"
    ]


@pytest.mark.parametrize(
    ("lists", "kind", "values"),
    [
        ([["a"], [], ["b", None]], "list[string]", [["a"], [], ["b"]]),
        ([[], [1], [2, 3]], "list[int64]", [[], [1], [2, 3]]),
        ([[1], [2.5], [None]], "list[float64]", [[1.0], [2.5], []]),
        ([[1, 2.5], [math.nan]], "list[float64]", [[1.0, 2.5], []]),
        ([[1.5, 10**400]], "string", [f"[1.5, {10**400}]"]),  # no float64 is so large
        ([[True], [False, True]], "list[bool]", [[True], [False, True]]),
        ([[date(2024, 1, 2)]], "list[date]", [[date(2024, 1, 2)]]),
        ([[], [None]], "list[string]", [[], []]),
        ([["a"], [1]], "string", ['["a"]', "[1]"]),
        ([["a"], ["b", 1], []], "string", ['["a"]', '["b", 1]', "[]"]),
        ([["a"], "b", []], "string", ['["a"]', "b", "[]"]),
        ([[{"k": 1}], []], "string", ['[{"k": 1}]', "[]"]),
        ([[["a"]], []], "string", ['[["a"]]', "[]"]),
        ([[2**53 + 1, 1.5]], "string", ["[9007199254740993, 1.5]"]),
        ([[2**53 + 1], [1.5], [2]], "string", ["[9007199254740993]", "[1.5]", "[2]"]),
        ([[2**63], [1]], "string", ["[9223372036854775808]", "[1]"]),
        ([[True, 1]], "string", ["[true, 1]"]),
    ],
)
def test_lists_have_the_type_of_their_values_in_any_order(
    lists: list[object], kind: ColumnType, values: list[object]
) -> None:
    for order in itertools.permutations(lists):
        columns = Columns()
        for value in order:
            columns.learn({"n": value}, typed=True)
        assert columns.types == {"n": kind}
        converted = [columns.convert({"n": value}, typed=True)["n"] for value in lists]
        assert converted == values
        assert [list(map(type, v)) for v in converted if isinstance(v, list)] == [
            list(map(type, v)) for v in values if isinstance(v, list)
        ]


@pytest.mark.parametrize(
    ("known", "value", "stored"),
    [
        ("string", ["a", None], '["a", null]'),  # a column of texts stays one
        ("list[string]", [], []),
        ("list[float64]", [1, 2.5], [1.0, 2.5]),
        ("list[float64]", [2**53 + 1], None),
        ("list[int64]", [2.5], None),
        ("list[int64]", ["a"], None),
        ("list[string]", "a", None),
        ("list[string]", ["a", 1], None),
        ("int64", [1], None),
        ("list[int64]", 1, None),
    ],
)
def test_lists_of_an_index_keep_their_type(
    known: ColumnType, value: object, stored: object
) -> None:
    columns = Columns({"n": known})
    if stored is None:
        with pytest.raises(BadRow, match="column 'n' is of type"):
            columns.learn({"n": value}, typed=True)
        assert columns.types == {"n": known}
    else:
        columns.learn({"n": value}, typed=True)
        assert columns.convert({"n": value}, typed=True) == {"n": stored}
        assert columns.types == {"n": known}


def test_a_list_of_floats_for_integers_gets_the_true_reason() -> None:
    columns = Columns({"n": "list[int64]"})
    for value in ([1.5], [1, 1.5], [1.0]):
        with pytest.raises(BadRow) as caught:
            columns.learn({"n": value}, typed=True)
        assert caught.value.reason == (
            "column 'n' is of type list[int64], this value is of type list[float64]"
        )


def test_integers_and_lists_do_not_meet() -> None:
    columns = Columns()
    columns.learn({"n": [1]}, typed=True)
    with pytest.raises(BadRow, match=r"of type list\[int64\], this value is of type int64; it "):
        columns.learn({"n": 1}, typed=True)
    untyped = Columns()
    untyped.learn({"n": []}, typed=True)
    with pytest.raises(BadRow, match="of type int64; it must be a list, such as "):
        untyped.learn({"n": 3}, typed=True)
    with pytest.raises(BadRow, match="lone surrogate"):
        Columns({"n": "list[string]"}).convert({"n": ["\udcff"]}, typed=True)


VALUES: tuple[object, ...] = (
    1,
    -2,
    2.5,
    2**53 + 1,
    True,
    "a",
    "2020-01-02",
    date(2020, 1, 2),
    [],
    ["a"],
    [1],
    [2.5],
)


@pytest.mark.parametrize("n", [2, 3])
def test_a_row_that_was_accepted_is_converted(n: int) -> None:
    for values in itertools.product(VALUES, repeat=n):
        columns, accepted = Columns(), []
        for value in values:
            with contextlib.suppress(BadRow):
                columns.learn({"n": value}, typed=True)
                accepted.append(value)
        for value in accepted:
            columns.convert({"n": value}, typed=True)


def test_a_list_among_numbers_rejects_its_own_row(tmp_path: Path) -> None:
    rows = [{"_id": str(n), "text": "a", "n": value} for n, value in enumerate((1, 2, [3]))]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents, [reject], survey = read_all(tmp_path / "c.jsonl")
    assert [document.metadata["n"] for document in documents] == [1, 2]
    assert (survey.columns["n"], reject.source.rpartition(":")[2]) == ("int64", "3")


@given(st.integers(-(1 << 70), 1 << 70), st.sampled_from(["float64", "list[float64]"]))
@example(2**53 + 1, "float64")
def test_no_integer_of_a_declared_column_is_rounded(number: int, kind: ColumnType) -> None:
    """Neither as a number nor as its text, such as a cell of CSV."""
    columns = Columns(declared={"n": kind})
    for value, typed in ((f" {number}", False), (number, True)):
        try:
            columns.learn({"n": value}, typed=typed)
        except BadRow:
            assert int(float(number)) != number or abs(number) >= 1 << 63
            continue
        stored = columns.convert({"n": value}, typed=typed)["n"]
        assert stored == (float(number) if kind == "float64" else [float(number)])
        assert int(float(number)) == number


def test_cells_among_typed_values_are_untyped() -> None:
    columns = Columns()
    rows: list[dict[str, object]]
    rows = [{"n": 1, "year": Cell("2019")}, {"year": Cell("about 1900")}, {"year": ["a"]}]
    for row in rows:
        columns.learn(row, typed=True)
    assert columns.types == {"n": "int64", "year": "string"}
    converted = [columns.convert(row, typed=True) for row in rows]
    assert converted == [{"n": 1, "year": "2019"}, {"year": "about 1900"}, {"year": '["a"]'}]
    assert type(converted[0]["year"]) is str
    typed = Columns()
    typed.learn({"day": Cell("2019-05-03")}, typed=True)
    assert typed.convert({"day": Cell("2019-05-03")}, typed=True) == {"day": date(2019, 5, 3)}


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["03.11.2025", "1.2.2024"], "date:%d.%m.%Y"),
        (["11/3/2025", "11/30/2025"], "date:%m/%d/%Y"),
        (["03-11-25"], "date:%d-%m-%y"),
        (["3.11.2025 18:30", "4.11.2025 7:05"], "timestamp:%d.%m.%Y %H:%M"),
        (["1.299,00", "79,90", "599"], "float:1.234,56"),
        (["1,299.00", "79.90"], "float:1,234.56"),
        (["9", "10", "2.5"], "float"),  # in another order as texts
        (["9", "10"], "int"),
        (["10", "9", "none"], "int"),  # most are numbers
        (["0123", "0456"], ""),  # in the same order as texts
        (["2024-01-31", "2023-02-01"], ""),
        (["3.11", "3.12.1", "red"], ""),
        (["4,95 €", "1.299,00\xa0€"], "float:1.234,56 €"),
        (["4.95€", "10€", "on request"], "float:1,234.56 €"),
        (["-$4.95", "$1,299"], "float:$ 1,234.56"),
        (["EUR 4,95", "EUR 12"], "float:EUR 1.234,56"),
        (["12 kg", "9 kg"], "int:1234 kg"),
        (["4,95 €", "4,95 $"], ""),  # not one currency
        (["4,95 €", "12"], ""),
        (["4,95 €", "free", "free"], ""),
        (["A12", "A9"], ""),  # a code
        (["18:30 Uhr"], ""),
        ([], ""),
    ],
)
def test_texts_have_the_type_that_compares_their_values(texts: list[str], kind: str) -> None:
    assert likely_type(texts) == kind


def test_a_build_names_the_type_of_dates_and_numbers_in_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        "id;text;day;price;plain;code;noted;version\n"
        "1;x;03.11.2025;599;1,5;1,2;01.02.2024;1.2.3\n"
        "2;x;;79,90;2,5;a;02.02.2024;1.2.4\n"
    )
    CorpusReader([path], column_types={"noted": "text"}).survey()
    said = capsys.readouterr().err
    assert "The column 'day' is text, such as '03.11.2025'" in said
    assert "--column-type day=date:%d.%m.%Y" in said
    assert "--column-type price=float:1.234,56" in said
    assert said.count("letter by letter") == 3, said  # and plain


def test_numbers_with_the_sign_of_a_currency_are_read_by_the_format_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id;text;price\n1;x;4,95 €\n2;x;12,00 €\n3;x;1.299 €\n")
    index = Index.build(path, model="hashing")
    built = capsys.readouterr().err
    assert "The column 'price' is text, such as '4,95 €', and is compared and sorted" in built
    assert "'price=float:1.234,56 €'" in built
    assert [each.doc_id for each in index.documents("price < '€5'")] == ["1", "2", "3"]
    assert "'price=float:1.234,56 €'" in capsys.readouterr().err
    index = Index.build(path, model="hashing", column_types={"price": "float:1.234,56 €"})
    assert [each.doc_id for each in index.documents("price < 15")] == ["1", "2"]
    assert index.get("3").metadata == {"price": 1299.0}  # type: ignore[union-attr]
    path.write_text("id;text;price\n1;x;4,95 $\n")
    reason = "'price' is of type float64 in the format 1.234,56 €, which this value does not fit"
    with pytest.raises(CorpusError, match=re.escape(f"{path}:2: column {reason} ('4,95 $').")):
        index.upsert(path)


def test_of_long_texts_only_the_beginning_is_kept() -> None:
    long = "v" * 100_000
    columns = Columns()
    for row in range(300):
        columns.learn({"m": f"{row} {long}"}, typed=True)
    assert sum(map(len, columns.texts["m"])) <= 10_000
    assert sum(map(len, some_texts(pa.array([long] * 300)))) <= 10_000
