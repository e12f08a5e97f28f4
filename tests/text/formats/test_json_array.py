"""JSON arrays of objects: every form, every damage, and rows in the order of the file."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.errors import CorpusError
from sbert_search.text.documents import CorpusReader
from sbert_search.text.formats import json_array
from sbert_search.text.formats.json_array import read_json
from sbert_search.text.formats.rows import RawRow, Reject, RowLimit

ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": 'quotes " and \\ and ]}', "n": {"deep": [1, [2, {"x": "}"}]]}},
    {"id": "b", "text": "é 日本 \U0001f600", "tags": ["[", "{", '"']},
    {},
    {"id": "c", "text": "", "n": None},
]


class Slow(io.BytesIO):
    """Gives one byte at a time, so that every value lies across reads."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(1)


def read(text: str | bytes, *, slow: bool = False, **options: Any) -> list[RawRow | Reject]:
    data = text.encode() if isinstance(text, str) else text
    return list(read_json((Slow if slow else io.BytesIO)(data), "f.json", **options))


def values(read_rows: list[RawRow | Reject]) -> list[dict[str, object]]:
    return [dict(row.values) for row in read_rows if isinstance(row, RawRow)]


FORMS = {
    "array": json.dumps(ROWS),
    "pretty": json.dumps(ROWS, indent=2, ensure_ascii=False),
    "BOM and space": "\ufeff \n\t" + json.dumps(ROWS) + "\n\n",
    "member": json.dumps({"version": [1, "x", {}], "of": {"a": [{}]}, "data": ROWS, "n": 5}),
    "pretty member": json.dumps(
        {"a": -1.5e3, "b": "x]", "data": ROWS, "c": [], "d": None}, indent=1
    ),
    "lines": "".join(json.dumps(row) + "\n" for row in ROWS),
    "lines with blank ones": "\n\n".join(json.dumps(row) for row in ROWS),
    "pretty objects": "\n".join(json.dumps(row, indent=2, ensure_ascii=False) for row in ROWS),
    "objects in one line": " ".join(json.dumps(row) for row in ROWS),
    "pretty objects with an array of objects": "".join(
        json.dumps(row, indent=1) for row in [{"id": "a", "by": [{"name": "x"}]}, *ROWS[1:]]
    ),
}


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows(form: str, slow: bool) -> None:
    found = read(FORMS[form], slow=slow)
    rows = ROWS if "array of" not in form else [{"id": "a", "by": [{"name": "x"}]}, *ROWS[1:]]
    assert values(found) == rows
    assert [row.source for row in found] == [f"f.json:item {n}" for n in range(1, 5)]
    for skip in range(6):
        assert values(read(FORMS[form], skip=skip)) == rows[skip:]


def test_one_object_is_a_row_or_holds_the_rows() -> None:
    assert values(read('{"id": "a", "text": "x", "tags": ["y"]}')) == [
        {"id": "a", "text": "x", "tags": ["y"]}
    ]
    assert values(read('{"rows": [{"id": "a"}]}')) == [{"id": "a"}]
    assert read("[]") == read("") == read(" \n") == []


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
objects = st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=5)


@pytest.mark.thorough
@given(objects, st.sampled_from([None, 1]), st.booleans(), st.booleans())
def test_any_array_is_read_as_json_reads_it(
    rows: list[dict[str, Any]], indent: int | None, escaped: bool, slow: bool
) -> None:
    text = json.dumps(rows, indent=indent, ensure_ascii=escaped)
    found = read(text, slow=slow)
    assert values(found) == rows
    assert len(found) == len(rows)


@pytest.mark.thorough
@given(objects, st.data())
def test_a_file_cut_anywhere_keeps_the_rows_before_the_cut(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    text = json.dumps(rows).encode()
    cut = data.draw(st.integers(1, max(1, len(text) - 1)))
    *whole, last = read(text[:cut])
    assert isinstance(last, Reject)
    assert last.source == f"f.json:item {len(whole) + 1}"
    ends = [len(json.dumps(rows[: n + 1])) - 1 for n in range(len(rows))]
    kept = sum(end <= cut for end in ends)
    assert values(read(text[:cut])) == rows[:kept]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ('[{"a": 1}, {"a": x}, {"a": 3}]', {2: "broken JSON at column 7"}),
        ('[{"a": NaN}, {"a": 2}]', {1: "NaN is not a JSON value"}),
        ('[1, "x", [2], {"a": 1}]', dict.fromkeys((1, 2, 3), "the row is not a JSON object")),
        ('[{"a": 1]', {1: "broken JSON", 2: "no comma or closing bracket"}),
        ('[{"a": 1} {"a": 2}]', {2: "no comma or closing bracket"}),
        ('[{"a": 1},, {"a": 2}]', {2: "a value is missing here"}),
        ('[{"a": 1},]', {2: "a value is missing here"}),
        ('[{"a": 1}', {2: "no comma or closing bracket"}),
        ('[{"a": "x', {1: "the file ends inside this item"}),
        ('[{"a": 1}] more', {2: "not a JSON array of objects from here on"}),
        ("hello", {1: "not a JSON array of objects from here on"}),
        ('{"a": [{"x": 1}], "b": [{"x": 2}]}', {2: "a second array of objects"}),
        (
            '{\n"a": 1, "b": [2]}',
            {1: "neither an array of objects nor an object with such an array"},
        ),
        ('{\n"a" 1}', {1: "a member or a closing bracket is missing"}),
        ('{"a": NaN}\n{"a": 2}', {1: "NaN is not a JSON value"}),
        (
            f'{{"a": "{"x" * (1 << 20)}"}}',
            {1: "neither an array of objects nor an object with such an array"},
        ),
        ('{"a": [{"x": 1}]} []', {2: "not a JSON array of objects from here on"}),
    ],
)
def test_what_is_broken_is_one_reject_with_its_place(text: str, reasons: dict[int, str]) -> None:
    for slow in (False, True):
        found = read(text, slow=slow)
        rejects = {n: row for n, row in enumerate(found, start=1) if isinstance(row, Reject)}
        assert rejects.keys() == reasons.keys()
        for number, reason in reasons.items():
            assert reason in rejects[number].reason
            assert rejects[number].source == f"f.json:item {number}"


@pytest.mark.parametrize("indent", [None, 1])
def test_the_first_object_of_a_sequence_may_be_as_long_as_any_row(indent: int | None) -> None:
    rows: list[dict[str, Any]] = [
        {"a": "x" * (1 << 20), "by": [{"name": "y"}, {"name": "z"}]},
        {"a": "z", "by": []},
    ]
    text = "\n".join(json.dumps(row, indent=indent) for row in rows)
    assert values(read(text)) == rows
    (reject,) = read(text, limit=RowLimit(n_bytes=1 << 20))[2:]
    assert isinstance(reject, Reject)
    assert "a second object follows the first" in reject.reason


@pytest.mark.parametrize("n_bytes", [1, 100])
def test_a_damaged_file_keeps_the_rows_before_the_damage(n_bytes: int) -> None:
    rows = [{"n": n, "text": f"{n**7} {n**5}"} for n in range(5000)]
    data = gzip.compress(json.dumps({"rows": rows}).encode())
    with gzip.open(io.BytesIO(data[:-n_bytes])) as stream:
        *whole, last = read_json(cast(BinaryIO, stream), "f.json")
    assert values(whole) == rows[: len(whole)]
    assert len(whole) > 4000
    assert isinstance(last, Reject)
    assert "the file is damaged here" in last.reason


def test_reads_are_small_since_damage_costs_the_whole_read() -> None:
    class Watched(io.BytesIO):
        largest = 0

        def read1(self, size: int | None = -1, /) -> bytes:
            self.largest = max(self.largest, -1 if size is None else size)
            return super().read1(size)

    stream = Watched(json.dumps([{"n": n} for n in range(5000)], indent=1).encode())
    assert len(list(read_json(stream, "f.json"))) == 5000
    assert 0 < stream.largest <= 8 << 10


def test_an_item_over_the_limit_is_one_reject() -> None:
    long = json.dumps({"text": "x\\" * 100_000})
    for text in (
        f'[{{"a": 1}}, {long}, {{"a": 2}}]',
        f'{{"l": {long},\n "d": [{{"a": 1}}, {{"a": 2}}]}}',
    ):
        found = read(text, limit=RowLimit(n_bytes=1000))
        assert values(found) == [{"a": 1}, {"a": 2}]
    rejects = [r for r in read(f"[{long}]", limit=RowLimit(n_bytes=1000)) if isinstance(r, Reject)]
    assert ["an item longer than" in reject.reason for reject in rejects] == [True]


@pytest.mark.parametrize("separator", [",", ",\n"])
def test_memory_is_that_of_a_few_rows(separator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[" + separator.join(json.dumps({"text": "x" * 500}) for _ in range(8000)) + "]"
    held = []
    fill = json_array._Scanner._fill

    def noted(scanner: json_array._Scanner) -> bool:
        held.append(len(scanner._data))
        return fill(scanner)

    monkeypatch.setattr(json_array._Scanner, "_fill", noted)
    assert len(read(text)) == 8000
    assert max(held) < 3 << 16 < len(text) // 10
    held.clear()
    skipped = f'{{"long": "{text.replace(chr(34), "")}", "rows": [{{"a": 1}}]}}'
    assert values(read(skipped)) == [{"a": 1}]


def test_compressed_and_damaged_files(tmp_path: Path) -> None:
    rows = [{"id": str(n), "text": f"text {n} " * 20} for n in range(2000)]
    data = json.dumps(rows).encode()
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(data))
    (tmp_path / "a.json.zst").write_bytes(pa.compress(data, "zstd", asbytes=True))
    for name in ("a.json.gz", "a.json.zst"):
        reader = CorpusReader(tmp_path / name)
        assert reader.survey().rows == 2000
        batches = list(reader.batches(skip_rows=1500))
        assert [d.doc_id for batch in batches for d in batch.documents] == [
            str(n) for n in range(1500, 2000)
        ]
    whole = (tmp_path / "a.json.gz").read_bytes()
    (tmp_path / "b.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match=r"b\.json\.gz:item [0-9]+: the file is damaged here"):
        CorpusReader(tmp_path / "b.json.gz").survey()
    (batch, *_) = CorpusReader(tmp_path / "b.json.gz", on_error="skip").batches()
    assert [d.doc_id for d in batch.documents][:500] == [str(n) for n in range(500)]


def test_rows_without_an_id_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text('{"docs": [{"text": "x"}, {"text": "y"}]}')
    (batch,) = CorpusReader(tmp_path / "n.json").batches()
    assert [(d.doc_id, d.source) for d in batch.documents] == [
        ("n.json#1", f"{tmp_path}/n.json:item 1"),
        ("n.json#2", f"{tmp_path}/n.json:item 2"),
    ]
