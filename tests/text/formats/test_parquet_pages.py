"""Damaged page headers of Parquet files end in errors, not in loops."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbert_search.errors import CorpusError
from sbert_search.text.documents import CorpusReader
from sbert_search.text.formats.parquet import ColumnPages


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
    chunk: Any = SimpleNamespace(
        data_page_offset=0, has_dictionary_page=False, total_compressed_size=len(data)
    )
    with pytest.raises(ValueError, match=message):
        ColumnPages.read(io.BytesIO(data), chunk)


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
