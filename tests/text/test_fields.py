"""Which fields become id, title, text and metadata, and in which types."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from sbert_search import Index, ReadSettings
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.records import Document
from sbert_search.text.column_types import ColumnType, parse_type, split_format
from sbert_search.text.columns import as_declared
from sbert_search.text.documents import CorpusReader, FieldNames
from sbert_search.text.formats.rows import BadRow

PAPERS: list[dict[str, Any]] = [
    {
        "id": "a",
        "title": "Mills",
        "abstract": "On mills.",
        "body": "A wheel turns.",
        "year": "1987",
    },
    {"id": "b", "title": "Bread", "abstract": None, "body": "Flour and water.", "year": "2003"},
    {"id": "c", "title": None, "abstract": "On nothing.", "body": None, "year": None},
]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(source: Any, **options: Any) -> list[Document]:
    return [doc for batch in CorpusReader(source, **options).batches() for doc in batch.documents]


def test_several_fields_are_joined_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    path = lines(tmp_path / "papers.jsonl", PAPERS)
    documents = read(path, fields=FieldNames(text=("body", "abstract")))
    assert [(d.title, d.text) for d in documents] == [
        ("Mills", "A wheel turns.\n\nOn mills."),
        ("Bread", "Flour and water."),
        ("", "On nothing."),
    ]
    assert [set(d.metadata) for d in documents] == [{"year"}, {"year"}, set()]


def test_a_title_that_is_part_of_the_text_is_not_the_title_too(tmp_path: Path) -> None:
    path = lines(tmp_path / "papers.jsonl", PAPERS)
    documents = read(path, fields=FieldNames(text=["title", "abstract", "body"]))
    assert documents[0].full_text == documents[0].text == "Mills\n\nOn mills.\n\nA wheel turns."
    assert [d.title for d in documents] == ["", "", ""]
    named = read(path, fields=FieldNames(text=["title", "body"], title="abstract"), on_error="skip")
    assert [d.full_text for d in named] == [
        "On mills. Mills\n\nA wheel turns.",
        "Bread\n\nFlour and water.",
        "On nothing.",
    ]


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"id": "title"}, ("Mills", "", "A wheel.", {"id": "1"})),
        ({"text": "id"}, ("p.jsonl#1", "Mills", "1", {"text": "A wheel."})),
        ({"title": "id"}, ("p.jsonl#1", "1", "A wheel.", {"title": "Mills"})),
        ({"text": ("title", "id")}, ("p.jsonl#1", "", "Mills\n\n1", {"text": "A wheel."})),
        ({"id": "text", "text": "title"}, ("A wheel.", "", "Mills", {"id": "1"})),
    ],
)
def test_a_field_that_is_named_for_one_part_is_not_detected_as_another(
    fields: dict[str, Any], parts: tuple[object, ...], tmp_path: Path
) -> None:
    path = lines(tmp_path / "p.jsonl", [{"id": "1", "title": "Mills", "text": "A wheel."}])
    (found,) = read(path, fields=FieldNames(**fields))
    assert (found.doc_id, found.title, found.text, found.metadata) == parts


def test_an_id_named_like_a_text_leaves_rows_with_vectors_without_a_text(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", [{"text": "A wheel.", "v": [1.0, 2.0]}])
    (found,) = read(path, fields=FieldNames(id="text", vector="v"))
    assert (found.doc_id, found.text) == ("A wheel.", "")
    with pytest.raises(CorpusError, match="no text field among 'text', 'v'"):
        read(path, fields=FieldNames(id="text"))


def test_fields_are_detected_in_other_case_if_none_has_the_usual_name(tmp_path: Path) -> None:
    rows = [{"ID": "a", "Title": "A mill", "Text": "by the river", "Year": 1900}]
    (document,) = read(lines(tmp_path / "a.jsonl", rows))
    assert (document.doc_id, document.title, document.text) == ("a", "A mill", "by the river")
    assert document.metadata == {"Year": 1900}
    rows = [
        {"ID": "7", "doc_id": "b", "TEXT": "never", "body": "the moon", "title": "", "Title": 3}
    ]
    (document,) = read(lines(tmp_path / "b.jsonl", rows))
    assert (document.doc_id, document.title, document.text) == ("b", "", "the moon")
    assert document.metadata == {"ID": "7", "TEXT": "never", "Title": 3}


def test_fields_that_are_all_blank_make_a_bad_row(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", [*PAPERS, {"id": "d", "abstract": " ", "body": "\n"}])
    with pytest.raises(CorpusError, match=r"p\.jsonl:4: .* 'title', 'abstract' and 'body' are all"):
        read(path, fields=FieldNames(text=("abstract", "body")))
    rows: list[dict[str, Any]] = [{"id": "a", "title": "T"}, {"id": "b", "title": " "}]
    with pytest.raises(CorpusError, match=r"q\.jsonl:2: blank document: 'title' is blank"):
        read(lines(tmp_path / "q.jsonl", rows), fields=FieldNames(text="title"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"text": ("abstract", "bodi")}, "Unknown text field 'bodi'; did you mean 'body'"),
        ({"text": ("x", "y")}, "Unknown text field 'x'; known: abstract, body, id, title, year"),
    ],
)
def test_a_field_that_no_row_has_is_an_error(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CorpusError, match=reason):
        read(lines(tmp_path / "papers.jsonl", PAPERS), fields=FieldNames(**fields))


def test_a_rare_field_may_come_late(tmp_path: Path) -> None:
    rows = [{"text": f"t{n}"} for n in range(150)] + [{"text": "u", "notes": "v", "rare": 1}]
    fields = FieldNames(text=("text", "notes"))
    documents = read(lines(tmp_path / "a.jsonl", rows), fields=fields, metadata_fields=["rare"])
    assert (documents[-1].text, documents[-1].metadata) == ("u\n\nv", {"rare": 1})


def test_chosen_metadata_have_the_order_of_the_row(tmp_path: Path) -> None:
    names = [f"m{n * 7 % 20}" for n in range(20)]
    path = lines(tmp_path / "a.jsonl", [{"text": "t", "more": 1, **dict.fromkeys(names, 1)}])
    (document,) = read(path, metadata_fields=sorted(names))
    assert list(document.metadata) == names


def test_a_field_may_be_text_and_also_id_or_metadata(tmp_path: Path) -> None:
    row = {"sku": "XR-500B", "name": "Drill", "kind": "tool", "price": 9}
    path = lines(tmp_path / "a.jsonl", [row])
    fields = FieldNames(id="sku", text=("name", "kind", "sku"))
    (document,) = read(path, fields=fields, metadata_fields=["sku", "kind", "price"])
    assert (document.doc_id, document.text) == ("XR-500B", "Drill\n\ntool\n\nXR-500B")
    assert document.metadata == {"sku": "XR-500B", "kind": "tool", "price": 9}
    (document,) = read(path, fields=fields)
    assert document.metadata == {"price": 9}


def test_a_column_of_lists_and_texts_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first: dict[str, Any] = {"text": "x", "tags": ["a", "b"]}
    rows = [first, {"text": "y", "tags": "c"}, {"text": "z", "n": [1]}]
    found = read(lines(tmp_path / "a.jsonl", rows))
    assert [document.metadata.get("tags") for document in found] == ['["a", "b"]', "c", None]
    assert "'tags' has lists and single texts" in capsys.readouterr().err
    found = read(lines(tmp_path / "a.jsonl", rows), column_types={"tags": "list[text]"})
    assert [document.metadata.get("tags") for document in found] == [["a", "b"], ["c"], None]
    assert "tags" not in capsys.readouterr().err
    found = read(lines(tmp_path / "a.jsonl", rows), column_types={"tags": "text"})
    assert found[0].metadata["tags"] == '["a", "b"]'
    assert "tags" not in capsys.readouterr().err  # as declared


def test_a_field_named_twice_is_an_error() -> None:
    wrong: list[dict[str, Any]] = [
        {"text": ("a", "b", "a")}, {"text": "a", "title": "a"}, {"id": "x", "title": "x"}
    ]  # fmt: skip
    for names in wrong:
        with pytest.raises(ConfigError, match="named twice"):
            FieldNames(**names)
    assert FieldNames(text=["a"]) == FieldNames(text="a")
    assert FieldNames(text=()) == FieldNames()


TYPED = {
    "year": "int", "price": "float", "open": "bool", "day": "date", "seen": "timestamp",
    "code": "text", "tags": "list[text]", "sizes": "list[int]",
}  # fmt: skip
CELLS = {
    "year": "1987", "price": "2", "open": "yes", "day": "2024-01-31",
    "seen": "2024-01-31T12:00:00+02:00", "code": "007", "tags": "red; old mill;", "sizes": "[1, 2]",
}  # fmt: skip
VALUES = {
    "year": 1987, "price": 2.0, "open": True, "day": date(2024, 1, 31),
    "seen": datetime(2024, 1, 31, 10, tzinfo=UTC), "code": "007", "tags": ["red", "old mill"],
    "sizes": [1, 2],
}  # fmt: skip


def as_csv(path: Path, row: dict[str, str]) -> Any:
    path = path / "a.csv"
    path.write_text(",".join(row) + "\n" + ",".join(f'"{cell}"' for cell in row.values()) + "\n")
    return path


def written(name: str, write: Callable[[pa.Table, Path], object]) -> Callable[..., Any]:
    def make(path: Path, row: dict[str, str]) -> Path:
        write(pa.Table.from_pylist([row]), path / name)
        return path / name

    return make


@pytest.mark.parametrize(
    "form",
    [
        as_csv,
        lambda path, row: lines(path / "a.jsonl", [row]),
        written("a.parquet", pq.write_table),
        written("a.feather", feather.write_feather),
        lambda path, row: [row],
        lambda path, row: pa.Table.from_pylist([row]),
        lambda path, row: iter([row]),
    ],
    ids=["csv", "jsonl", "parquet", "feather", "dicts", "table", "generator"],
)
def test_declared_types_hold_for_every_kind_of_source(
    tmp_path: Path, form: Callable[[Path, dict[str, str]], Any]
) -> None:
    row = {"id": "1", "text": "x", **CELLS, "other": "y"}
    chosen = [*CELLS, "id"]
    (document,) = read(form(tmp_path, row), column_types=TYPED, metadata_fields=chosen)
    named = dict(document.metadata)
    assert str(named.pop("id")) == "1"
    assert named == VALUES
    assert {name: type(value) for name, value in named.items()} == {
        name: type(value) for name, value in VALUES.items()
    }


NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "converted"),
    [
        ("int", 5.0, 5),
        ("int", "-5", -5),
        ("int", 5.5, None),
        ("int", True, None),
        ("int", "5.0", None),
        ("int", "9223372036854775808", None),
        ("int", "", None),
        ("float", 2**53 + 1, None),
        ("float", "9007199254740993", None),
        ("float", "9007199254740992", 2.0**53),
        ("float", "1e999", None),
        ("float", "nan", None),
        ("float", ".5", 0.5),
        ("float", True, None),
        ("bool", 1, True),
        ("bool", "No", False),
        ("bool", 2, None),
        ("bool", "maybe", None),
        ("date", "2024-02-30", None),
        ("date", NOON, None),
        ("date", datetime(2024, 1, 31), date(2024, 1, 31)),
        ("date", 20240131, None),
        ("timestamp", date(2024, 1, 31), datetime(2024, 1, 31, tzinfo=UTC)),
        ("timestamp", "2024-01-31 12:00", NOON),
        ("timestamp", "0001-01-01T00:00:00+23:59", None),
        ("timestamp", "1611122912345", None),  # milliseconds; Python reads the year 1611
        ("text", 7, "7"),
        ("text", True, "true"),
        ("text", ["a", 1], '["a", 1]'),
        ("text", NOON, "2024-01-31T12:00:00+00:00"),
        ("list", "a", ["a"]),
        ("list", ["a", 7, None], ["a", "7"]),
        ("list[int]", ["5", 6.0], [5, 6]),
        ("list[int]", 5, [5]),
        ("list[int]", ["5", "x"], None),
        ("list[int]", "[5, 6", None),
        ("list[int]", "1;2", [1, 2]),
        ("list[date]", "2024-01-31;2024-02-01", [date(2024, 1, 31), date(2024, 2, 1)]),
        ("date:%d.%m.%Y", " 31.1.2024 ", date(2024, 1, 31)),
        ("date:%d.%m.%Y", "31.02.2024", None),
        ("date:%d.%m.%Y", "31.01.2024 12:00", None),
        ("date:%d.%m.%Y", "2024-01-31", date(2024, 1, 31)),  # ISO 8601, as hits have it
        ("date:%d.%m.%Y", date(2024, 1, 31), date(2024, 1, 31)),
        ("date:%d.%m.%Y %H:%M", "31.01.2024 00:00", date(2024, 1, 31)),
        ("date:%d.%m.%Y %H:%M", "31.01.2024 12:00", None),
        ("date:%m/%d/%y", "01/31/24", date(2024, 1, 31)),
        ("timestamp:%d.%m.%Y %H:%M", "31.01.2024 12:00", NOON),
        ("timestamp:%d.%m.%Y %H:%M %z", "31.01.2024 13:00 +0100", NOON),
        ("list[date:%d.%m.%Y]", "31.01.2024; 01.02.2024", [date(2024, 1, 31), date(2024, 2, 1)]),
        ("float:1.234,56", "-1.234.567,8", -1234567.8),
        ("float:1.234,56", "1234,5", 1234.5),
        ("float:1.234,56", "1.234", 1234.0),
        ("float:1.234,56", "12.5", None),  # neither thousands nor a decimal comma
        ("float:1.234,56", "1.234,56 €", None),
        ("float:1.234,56", ",5", None),
        ("float:1.234,56 €", "-1.234,56 €", -1234.56),
        ("float:1.234,56 €", "4,95\xa0€", 4.95),
        ("float:1.234,56€", "4,95 €", 4.95),
        ("float:1.234,56 €", "4,95 $", None),
        ("float:1.234,56 €", "4,95", None),
        ("float:1.234,56 €", 4.95, 4.95),
        ("float:$1,234.56", "-$4.5", -4.5),
        ("float:$1,234.56", "$-4.5", -4.5),
        ("float:$1,234.56", "-$-4.5", None),
        ("float:EUR 1234.56", "EUR 4.95", 4.95),
        ("int:1234 kg", "12kg", 12),
        ("list[float:1,234.56 %]", "1.5 %; 2 %", [1.5, 2.0]),
        ("float:1.234,56", 12.5, 12.5),
        ("float:1.234,56", "9.007.199.254.740.993", None),  # float64 would round it
        ("float:1,234.56", "1,234.5", 1234.5),
        ("float:1234,56", "1.234,5", None),
        ("float:1 234,56", "1\u202f234,5", 1234.5),
        ("float:1'234.56", "1\u2019234.5", 1234.5),
        ("int:1.234", "1.234", 1234),
        ("int:1.234", "1.234,5", None),
        ("list[float:1.234,56]", "1,5; 2,5", [1.5, 2.5]),
    ],
)
def test_a_value_is_converted_exactly_or_refused(kind: str, value: object, converted: Any) -> None:
    stored: ColumnType = parse_type(kind)
    form = split_format(kind)[1]
    if converted is None:
        with pytest.raises(BadRow, match="column 'n'"):
            as_declared(value, stored, "n", form)
        return
    result = as_declared(value, stored, "n", form)
    assert (result, type(result)) == (converted, type(converted))


def test_a_value_that_does_not_fit_is_a_bad_row_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "books.csv"
    path.write_text("id,text,year\na,x,1987\nb,y,soon\n")
    with pytest.raises(CorpusError) as refused:
        read(path, column_types={"year": "int"})
    assert str(refused.value).startswith(
        f"{path}:3: column 'year' is of type int64, which this value does not fit ('soon')."
    )
    reader = CorpusReader(path, column_types={"year": "int"}, on_error="skip")
    assert dict(reader.survey().columns) == {"year": "int64"}
    (batch,) = reader.batches()
    assert ([d.doc_id for d in batch.documents], len(batch.rejects)) == (["a"], 1)


@pytest.mark.parametrize(
    "name", ["integer", "list[list[int]]", "list[", "json", "list[object]", ""]
)
def test_an_unknown_type_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=r"Unknown column type .*(did you mean|known: bool)"):
        parse_type(name)


@pytest.mark.parametrize(
    "name",
    [
        *("text:x", "bool:x", "date:%d.%m", "date:foo", "date:%Q", "date:%", "timestamp:%H:%M"),
        *("float:x", "float:1.234.56", "float:1a234", "int:1.234,56", "list[text:x]"),
    ],
)
def test_a_format_that_is_none_of_the_type_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=r"has no format of .*; write one such as date:%d\.%m"):
        ReadSettings(column_types={"n": name})


def test_dates_and_decimals_of_another_country_are_compared_as_such(tmp_path: Path) -> None:
    path = tmp_path / "faq.csv"
    text = "_id;text;seit;Preis\n"
    path.write_text(text + "a;x;28.11.2024;1.234,56\nb;y;15.09.2025;9,5\nc;z;27.04.2024;\n")
    types = {"seit": "date:%d.%m.%Y", "Preis": "float:1.234,56"}
    index = Index.build(path, out=tmp_path / "index", model="hashing", column_types=types)
    assert index.info().columns == {"seit": "date", "Preis": "float64"}
    assert [each.doc_id for each in index.documents("seit > '2025-01-01'")] == ["b"]
    assert [each.doc_id for each in index.documents("Preis > 10")] == ["a"]
    path.write_text(text + "d;x;1.2.2026;2.000,0\n")
    index = Index.open(tmp_path / "index")
    index.add(path)  # the index keeps the formats
    assert [each.doc_id for each in index.documents("seit > '2026-01-31' AND Preis = 2000")] == [
        "d"
    ]
    path.write_text(text + "e;x;31.02.2026;1\n")
    with pytest.raises(
        CorpusError,
        match=r"faq\.csv:2: column 'seit' is of type date in the format %d\.%m\.%Y, which this "
        r"value does not fit \('31\.02\.2026'\)",
    ):
        index.add(path)


def test_unknown_and_contradicting_metadata_fields_are_errors(tmp_path: Path) -> None:
    path = lines(tmp_path / "papers.jsonl", PAPERS)
    with pytest.raises(CorpusError, match="Unknown metadata field 'yaer'; did you mean 'year'"):
        read(path, fields=FieldNames(text="body"), metadata_fields=["yaer"], on_error="skip")
    with pytest.raises(CorpusError, match="Unknown metadata field 'yaer'"):
        read(path, fields=FieldNames(text="body"), column_types={"yaer": "int"}, on_error="skip")
    with pytest.raises(ConfigError, match="column_types has 'year', which metadata_fields leaves"):
        Index.build(path, metadata_fields=["body"], column_types={"year": "int"}, model="hashing")
    with pytest.raises(ConfigError, match="Unknown column type 'number'"):
        Index.build(path, column_types={"year": "number"}, model="hashing")


def test_updates_read_as_the_build_did(tmp_path: Path) -> None:
    fields = FieldNames(text=("abstract", "body"))
    index = Index.build(
        lines(tmp_path / "a.jsonl", PAPERS),
        out=tmp_path / "i",
        model="hashing",
        fields=fields,
        metadata_fields=["year"],
        column_types={"year": "int"},
    )
    index = Index.open(tmp_path / "i")
    assert index.read_settings.fields == fields
    assert index.info().columns == {"year": "int64"}
    csv = tmp_path / "more.csv"
    csv.write_text("id,title,abstract,body,year,extra\nd,T,,only this,2024,5\n")
    assert index.add(csv).counts.indexed == 1
    document = index.get("d")
    assert document is not None
    assert (document.text, document.metadata) == ("only this", {"year": 2024})
    assert len(list(index.documents(where="year >= 2003"))) == 2
    assert index.upsert(tmp_path / "a.jsonl").counts.duplicate == 3
    index.add([{"id": "e", "abstract": "No year."}])
    with pytest.raises(ConfigError, match="'year' is declared as string, but it is int64"):
        index.add(csv, column_types={"year": "text"})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"year": [1, 2]},
            r"'year' is of type int64, .* such as 1, or the index .* type list\[int64\] \(\[1, 2\]",
        ),
        ({"day": [*"red"]}, r"'day' is of type bool, .* it must be one value, such as 'red', or "),
        (
            {"tags": "x"},
            r"'tags' is of type list\[string\], .* must be a list, such as \['x'\] \('x'",
        ),
        ({"tags": 5}, r"'tags' is of type list\[string\], .* must be a list, such as \['5'\] \(5"),
        ({"text": [*"mill"]}, r"'text' is of type list; it must be a string, such as 'mill' \(\["),
        ({"title": ["a", "bc"]}, r"'title' is of type list; it must be a string, such as 'a bc' "),
    ],
)
def test_lists_and_single_values_in_place_of_each_other_name_row_column_value_and_remedy(
    row: dict[str, object], message: str
) -> None:
    first = {"_id": "a", "text": "t", "year": 1, "tags": ["x"], "kind": "k", "day": True}
    index = Index.build([first], model="hashing:4")
    with pytest.raises(CorpusError, match=f"rows:2: .*{message}.*on_error='skip'"):
        index.upsert([first, {**first, "_id": "b", **row}])


def test_a_list_in_a_column_of_texts_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    first: dict[str, object] = {"_id": "a", "text": "t", "kind": "k"}
    index = Index.build([first], model="hashing:4")
    index.upsert([first, {**first, "_id": "b", "kind": [*"red"]}])
    said = capsys.readouterr().err
    assert "rows:2: the column 'kind' has single texts in the index, and here a list (['r'," in said
    assert "JSON text. If one text is meant, pass 'red'." in said
    for names in ([*"kind"], tuple("kind")):
        with pytest.raises(CorpusError, match=r"the letters of 'kind'; pass the list \['kind'\]"):
            index.upsert([first], metadata_fields=names)
    with pytest.raises(CorpusError, match="the letters of 'kind'"):
        Index.build([first], model="hashing:4", metadata_fields=[*"kind"])
    letters = [{"_id": "a", "text": "t", "k": 1, "i": 1, "n": 1, "d": 1, "kind": 1}]
    assert set(
        Index.build(letters, model="hashing:4", metadata_fields=[*"kind"]).state.columns
    ) == {*"kind"}
