"""Sources whose rows take all the memory that a careless reader gives them."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

MIB = 1 << 20


def _jsonl(path: Path, rows: Iterator[dict[str, Any]]) -> Path:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def small(folder: Path, size: int) -> Path:
    """As many short rows as a batch has in a build, many times over."""
    rows = ({"_id": f"d{n}", "text": f"topic {n % 97} of {n}"} for n in range(60 * size))
    return _jsonl(folder / "small.jsonl", rows)


def wide_metadata(folder: Path, size: int) -> Path:
    """A megabyte of metadata in every row; together half the limit."""
    filler = "x" * MIB
    rows = ({"_id": str(n), "text": f"word {n}", "m": f"{n} {filler}"} for n in range(size // 2))
    return _jsonl(folder / "wide_metadata.jsonl", rows)


def thousand_columns(folder: Path, size: int) -> Path:
    """A thousand columns, all of them filled."""
    rows = (
        {"_id": str(n), "text": "t", **{f"c{i}": f"value {i} of {n}" for i in range(990)}}
        for n in range(2 * size)
    )
    return _jsonl(folder / "thousand_columns.jsonl", rows)


def five_thousand_columns(folder: Path, size: int) -> Path:
    """More columns than an index has."""
    row = {"_id": "a", "text": "t", **{f"c{i}": i for i in range(5000)}}
    return _jsonl(folder / "five_thousand_columns.jsonl", iter([row]))


def texts(folder: Path, size: int) -> Path:
    """Texts of an 80th of the limit: just small enough."""
    rows = ({"_id": str(n), "text": f"word{n} other " * (size * MIB // 960)} for n in range(6))
    return _jsonl(folder / "texts.jsonl", rows)


def wide_characters(folder: Path, size: int) -> Path:
    """Small enough as bytes, and not as characters of four bytes each."""
    text = "word " * (size * MIB // 400) + "\U0001f600"
    path = folder / "wide_characters.jsonl"
    path.write_text(json.dumps({"_id": "a", "text": text}, ensure_ascii=False) + "\n")
    return path


def huge_texts(folder: Path, size: int) -> Path:
    """Texts of a tenth of the limit."""
    rows = ({"_id": str(n), "text": f"word{n} other " * (size * MIB // 120)} for n in range(2))
    return _jsonl(folder / "huge_texts.jsonl", rows)


def huge_title(folder: Path, size: int) -> Path:
    """A title of an 80th of the limit."""
    row = {"_id": "a", "title": "long title " * (size * MIB // 880), "text": "short"}
    return _jsonl(folder / "huge_title.jsonl", iter([row]))


def nested_json(folder: Path, size: int) -> Path:
    """Empty lists, each of which takes thirty times its bytes."""
    path = folder / "nested_json.jsonl"
    path.write_text('{"_id": "a", "text": "t", "m": [[]' + ",[]" * (size * MIB // 300) + "]}\n")
    return path


def line_without_end(folder: Path, size: int) -> Path:
    """One line as large as the limit, from a small file."""
    path = folder / "line_without_end.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(size):
            file.write(b"x" * MIB)
    return path


def zstd_text(folder: Path, size: int) -> Path:
    """The same as text, with zstd's largest window."""
    path = folder / "zstd_text.txt.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        for _ in range(size):
            file.write(b"x" * MIB)
    return path


def xz_dictionary(folder: Path, size: int) -> Path:
    """A dictionary larger than half the limit."""
    path = folder / "xz_dictionary.jsonl.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": size * MIB}]
    with lzma.open(path, "wb", filters=filters) as file:
        file.write(b'{"_id": "a", "text": "t"}\n')
    return path


def csv_field(folder: Path, size: int) -> Path:
    """A quoted field over many lines, a tenth of the limit."""
    path = folder / "csv_field.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["_id", "text"], ["a", "many words\n" * (size * MIB // 110)]])
    return path


def csv_cells(folder: Path, size: int) -> Path:
    """A record of nothing but cells."""
    path = folder / "csv_cells.csv"
    path.write_text("_id,text\na,b" + ",cc" * (size * MIB // 300) + "\n")
    return path


def parquet_cells(folder: Path, size: int) -> Path:
    """Two cells, together nearly the limit, in a file of some kilobytes."""
    cells = [letter * (2 * size * MIB // 5) for letter in "ab"]
    path = folder / "parquet_cells.parquet"
    table = pa.table({"_id": ["a", "b"], "text": pa.array(cells, pa.large_string())})
    pq.write_table(table, path, compression="zstd")
    return path


def parquet_dictionary(folder: Path, size: int) -> Path:
    """One value of a 100th of the limit that a thousand rows share."""
    value = pa.array(["v" * (size * MIB // 100)])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000, np.int32)), value)
    path = folder / "parquet_dictionary.parquet"
    table = pa.table({"_id": [str(n) for n in range(1000)], "text": ["t"] * 1000, "m": column})
    pq.write_table(table, path, compression="zstd")
    return path


def parquet_nested(folder: Path, size: int) -> Path:
    """A list as large as the limit in one of many rows."""
    numbers = pa.array(np.zeros(size * MIB // 8, np.int64))
    ends = [0] * 500 + [len(numbers)] * 501
    column = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), numbers)
    path = folder / "parquet_nested.parquet"
    table = pa.table({"_id": [str(n) for n in range(1000)], "text": ["t"] * 1000, "m": column})
    pq.write_table(table, path, compression="zstd")
    return path


def parquet_skewed(folder: Path, size: int) -> Path:
    """Thousands of short rows, then some of a 100th of the limit, in one row group."""
    long = ["w " * (size * MIB // 200)] * 40
    rows = ["t"] * 20_000 + [f"{n} {text}" for n, text in enumerate(long)]
    path = folder / "parquet_skewed.parquet"
    table = pa.table(
        {"_id": [str(n) for n in range(len(rows))], "text": ["t"] * len(rows), "m": rows}
    )
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    return path


def arrow_cells(folder: Path, size: int) -> Path:
    """A cell of a tenth of the limit in a mapped file, and a value that many rows share."""
    shared = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(1000, np.int32)), pa.array(["v" * (size * MIB // 100)])
    )
    cells = pa.array(["t"] * 999 + ["w" * (size * MIB // 10)])
    table = pa.table({"_id": [str(n) for n in range(1000)], "text": cells, "m": shared})
    path = folder / "arrow_cells.arrow"
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    return path


SHAPES: tuple[Callable[[Path, int], Path], ...] = (
    small,
    wide_metadata,
    thousand_columns,
    five_thousand_columns,
    texts,
    wide_characters,
    huge_texts,
    huge_title,
    nested_json,
    line_without_end,
    zstd_text,
    xz_dictionary,
    csv_field,
    csv_cells,
    parquet_cells,
    parquet_dictionary,
    parquet_nested,
    parquet_skewed,
    arrow_cells,
)
