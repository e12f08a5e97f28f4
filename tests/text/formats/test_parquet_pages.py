"""Damaged page headers of Parquet files end in errors, not in loops."""

from __future__ import annotations

import io
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbert_search.errors import CorpusError
from sbert_search.text.documents import CorpusReader
from sbert_search.text.formats.parquet import Chunk, ColumnPages, read_footer


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"\x19\xf7" + b"\xff" * 8 + b"\x7f", "cut off"),  # a list of 2**62 doubles
        (b"\x19\xf1" + b"\xff" * 8 + b"\x7f", "cut off"),  # of as many booleans
        (b"\x19\xf8" + b"\xff" * 8 + b"\x7f", "cut off"),  # of as many texts
        (b"\x19" * 4_096, "nested too deep"),  # lists in lists
        (b"\x1c" * 4_096, "nested too deep"),  # structs in structs
    ],
)
def test_a_damaged_header_is_an_error(header: bytes, message: str) -> None:
    data = header + bytes(64)
    chunk = Chunk([], 1, len(data), len(data), 0, -1)
    with pytest.raises(ValueError, match=message):
        ColumnPages.read(io.BytesIO(data), chunk)


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_the_footer_is_read_as_pyarrow_reads_it(tmp_path: Path, use_dictionary: bool) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({
        "text": [f"text {n % 40}" for n in range(100)],
        "numbers": [[n, n + 1] for n in range(100)],
        "inner": [{"a": n, "b": {"c": float(n)}} for n in range(100)],
        "flag": [n % 3 == 0 for n in range(100)],
    })  # fmt: skip
    table = table.replace_schema_metadata({"k": "v" * 300})
    pq.write_table(table, path, row_group_size=17, use_dictionary=use_dictionary)
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    expected = [[group.column(n) for n in range(metadata.num_columns)] for group in groups]
    chunks = read_footer(path, metadata)
    assert [len(group) for group in chunks] == [5] * 6
    for ours, theirs in zip(chain(*chunks), chain(*expected), strict=True):
        assert ours[1:5] == (
            theirs.num_values,
            theirs.total_uncompressed_size,
            theirs.total_compressed_size,
            theirs.data_page_offset,
        )
        dictionary = theirs.dictionary_page_offset if theirs.has_dictionary_page else -1
        assert (ours.dictionary_page, len(ours.encodings)) == (dictionary, len(theirs.encodings))


def test_pages_that_state_no_values_are_rejected_rows(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    texts = [f"word{i % 3_000:05d}" * 3 for i in range(5_000)]
    pq.write_table(
        pa.table({"text": texts}),
        path,
        compression="none",
        data_page_size=1 << 20,
        write_statistics=False,
    )
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    at = data.index(b"\x90\x4e", column.data_page_offset)  # 5,000 as a zigzag varint
    data[at : at + 2] = b"\x80\x00"
    path.write_bytes(data)
    reader = CorpusReader(path, on_error="skip")
    rows = [(len(batch.documents), len(batch.rejects)) for batch in reader.batches()]
    assert sum(n for n, _ in rows) == 0
    assert sum(n for _, n in rows) > 0
    with pytest.raises(CorpusError, match=r"d\.parquet"):
        list(CorpusReader(path).batches())
