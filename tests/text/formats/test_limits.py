"""A row that takes too much memory is rejected by name before anything is made of it."""

from __future__ import annotations

import json
import lzma
import tracemalloc
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from sbert_search.errors import CorpusError
from sbert_search.text.documents import CorpusReader
from sbert_search.text.formats.columnar import row_bytes
from sbert_search.text.formats.lines import parse_object, read_lines
from sbert_search.text.formats.parquet import plan_group, read_footer
from sbert_search.text.formats.rows import BOM, BadRow, RowLimit, json_bytes
from tests.limits import memory_limited

BUDGET = 64 << 20  # a row may take 1 MiB of it
TEXTS = ["aé" * 5, None, "bb", "", "c"]


def rejects_of(path: Path) -> list[str]:
    """Return why rows are rejected; one good row is in every file."""
    with memory_limited(BUDGET):
        reader = CorpusReader(path, on_error="skip")
    batches = list(reader.batches())
    assert sum(len(batch.documents) for batch in batches) == 1
    return [reject.reason for batch in batches for reject in batch.rejects]


def test_a_byte_order_mark_takes_no_room_of_the_first_line() -> None:
    limit = RowLimit(10)
    fits, over = b"a" * limit.n_bytes, b"a" * (limit.n_bytes + 1)
    read = [
        (number, line) if isinstance(line, bytes) else (number, None)
        for first in (fits, over)
        for number, line in read_lines(BytesIO(BOM + first + b"\nb\n"), limit)
    ]
    assert read == [(1, fits), (2, b"b"), (1, None), (2, b"b")]


@pytest.mark.parametrize(
    "value",
    [
        json.dumps("x" * (1 << 20)),
        json.dumps("x" * (1 << 18) + "\U0001f600", ensure_ascii=False),
        json.dumps("x" * (1 << 18) + "\U0001f600"),
        "[[]" + ",[]" * 10_000 + "]",
        "{" + ",".join(f'"{n}":{{}}' for n in range(5_000)) + "}",
    ],
    ids=["long", "wide", "escaped", "lists", "objects"],
)
def test_a_json_row(tmp_path: Path, value: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(f'{{"id": 1, "text": "t", "m": {value}}}\n{{"id": 2, "text": "t"}}\n')
    (reason,) = rejects_of(path)
    assert reason.endswith("1.0 MiB with --memory 64 MiB; raise --memory")
    assert sum(batch.rows_end for batch in CorpusReader(path).batches()) == 2  # without a budget


@pytest.mark.parametrize(
    "value",
    [
        *([{"ab": "cd"}] * 10, [{"n": n, "b": f"x{n}"} for n in range(300)], {"a": [[]] * 99}),
        *({f"k{n}": n / 7 for n in range(999)}, [[n + 300] for n in range(99)], "é" * 99, [None]),
        *({"a": ["\U0001f600"] * 99}, {"a": ["é"] * 99 + ["1", "abc"]}, {"a": {"b": {"c": {}}}}),
    ],
)
def test_the_memory_of_a_json_row_is_below_the_bound(value: object) -> None:
    """The mean over 50 equal rows is compared, since a parser allocates some memory only once."""
    line = json.dumps({"m": value}, ensure_ascii=False).encode()
    parse_object(line)
    tracemalloc.start()
    rows = [parse_object(line) for _ in range(50)]
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(rows) == 50
    assert taken <= 50 * json_bytes(line) + 1_000


def test_a_large_row_without_a_budget_has_no_memory_in_its_reason() -> None:
    with pytest.raises(BadRow, match=r"^the row takes 2\.0 MiB, and one row may take 1\.0 MiB$"):
        RowLimit(n_bytes=1 << 20).check(2 << 20)


@pytest.mark.parametrize(
    "record",
    ["1,t," + "x" * (1 << 18), '1,t,"' + "many\n" * (1 << 16) + '"', "1,t" + ",ab" * 20_000],
)
def test_a_csv_record(tmp_path: Path, record: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text(f"id,text,m\n2,t,\n{record}\n3,t,\n")
    with memory_limited(BUDGET):
        (batch,) = CorpusReader(path, on_error="skip").batches()
    assert [document.doc_id for document in batch.documents] == ["2", "3"]
    (reject,) = batch.rejects
    assert "of memory, and one row may take 1.0 MiB" in reject.reason


def test_text_files_and_lines(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for name, text in [("a", "good"), ("b", "x" * (2 << 20)), ("c", "é" * (1 << 18))]:
        (tmp_path / "f" / f"{name}.txt").write_text(text)
    large, wide = rejects_of(tmp_path / "f")
    limit = "1.0 MiB with --memory 64 MiB; raise --memory"
    assert large == f"the file has 2.0 MiB, and one document may have {limit}"
    assert wide == f"the row takes 2.0 MiB of memory, and one row may take {limit}"
    (tmp_path / "t.txt").write_text("good\n" + "é" * (1 << 18) + "\n")
    assert rejects_of(tmp_path / "t.txt") == [wide]


def table(values: list[str], **more: pa.Array) -> pa.Table:
    n_rows = len(values)
    return pa.table({"id": list(range(n_rows)), "text": ["t"] * n_rows, "m": values, **more})


def test_a_parquet_row_and_a_page(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(table(["v" * (2 << 20), "small"]), path)
    assert rejects_of(path)[0].startswith("the row takes 2.0 MiB of memory")
    pq.write_table(table(["v" * (30 << 20), "small"]), path, compression="zstd")
    assert path.stat().st_size < 10_000
    with memory_limited(BUDGET):
        reader = CorpusReader(path, on_error="skip")
        assert reader.survey().rejected == reader.survey().rows == 2
        with pytest.raises(
            CorpusError, match=r"pages of its row group take 90 MiB of memory at a time"
        ):
            CorpusReader(path).survey()


def test_few_values_that_many_rows_share_are_read_few_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    shared = table(["v" * 100_000] * 500).set_column(
        2, "m", pa.array(["v" * 100_000] * 500).dictionary_encode()
    )
    pq.write_table(shared, path)
    with memory_limited(BUDGET):
        sizes = [len(b.documents) for b in CorpusReader(path).batches()]
    assert sum(sizes) == 500
    assert max(sizes) <= 11


def test_an_arrow_row(tmp_path: Path) -> None:
    path = tmp_path / "c.arrow"
    rows = table(["small", "v" * (2 << 20)])
    with ipc.new_file(path, rows.schema) as writer:
        writer.write_table(rows)
    assert rejects_of(path)[0].startswith("the row takes 2.0 MiB of memory")


def test_an_xz_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl.xz"
    row = b'{"id": 1, "text": "t"}\n'
    path.write_bytes(lzma.compress(row) + lzma.compress(row.replace(b"1", b"2")) + bytes(8))
    assert [d.doc_id for batch in CorpusReader(path).batches() for d in batch.documents] == [
        "1",
        "2",
    ]
    path.write_bytes(lzma.compress(row, preset=9))
    assert len(next(CorpusReader(path).batches()).documents) == 1
    with (
        memory_limited(BUDGET),
        pytest.raises(CorpusError, match=r"c\.jsonl\.xz: decompressing it takes more than 11 MiB"),
    ):
        CorpusReader(path).survey()


COLUMNS = {
    "text": pa.array(TEXTS),
    "views": pa.array(TEXTS, pa.string_view()),
    "shared": pa.array(TEXTS).dictionary_encode(),
    "none": pa.array([None] * 5, pa.string()).dictionary_encode(),
    "numbers": pa.array([1, 2, None, 4, 5]),
    "lists": pa.array([["a"], None, [], ["b" * 9], ["c", "d"]]),
    "list views": pa.array([["a"], None, [], ["b" * 9], ["c"]], pa.list_view(pa.string())),
    "pairs": pa.array([[1, 2]] * 5, pa.list_(pa.int32(), 2)),
    "objects": pa.array([{"a": n, "b": "x" * n} for n in range(5)]),
    "maps": pa.array([[("k", n)] * n for n in range(5)], pa.map_(pa.string(), pa.int64())),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array(["x", "yy"])),
    "bytes": pa.array([b"abc"] * 5, pa.binary(3)),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_slice_of_a_column_is_sized_as_a_part_of_it(name: str) -> None:
    batch = pa.record_batch([COLUMNS[name]], [name])
    whole = row_bytes(batch, held=False)
    values = COLUMNS[name].to_pylist()
    assert all(
        size >= 64 + len(str(value or "")) // 4 for size, value in zip(whole, values, strict=True)
    )
    for start in range(5):
        assert (row_bytes(batch.slice(start, 2), held=False) == whole[start : start + 2]).all()


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_fixed_width_counts_however_it_is_encoded(tmp_path: Path, dictionary: bool) -> None:
    width, path = 1 << 16, tmp_path / "fixed.parquet"
    values = pa.array([b"x" * width, b"y" * width] * 200, pa.binary(width))
    table = pa.table({"text": ["t"] * 400, "b": values})
    pq.write_table(table, path, use_dictionary=dictionary, write_batch_size=4)
    with memory_limited(256 << 20):
        limit = RowLimit.within()
    with pq.ParquetFile(path) as file:
        n_rows = plan_group(file, path, 0, read_footer(path, file.metadata)[0], limit)
    assert 1 <= n_rows <= limit.block_bytes // width


@pytest.mark.parametrize("index", [2, -1])
def test_an_index_beyond_its_dictionary_is_an_error(index: int) -> None:
    indices = pa.array([0, index], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    with pytest.raises(ValueError, match="beyond the dictionary"):
        row_bytes(pa.record_batch([column], ["text"]), held=False)
