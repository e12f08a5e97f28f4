"""What a user of exports writes: type checkers accept it and know every type.

It is checked and never run; see `tests/typing`.
"""

from __future__ import annotations

from typing import assert_type

from sbert_search import (
    ExportReport,
    Index,
    export_index,
    import_index,
)


def exchange(index: Index) -> None:
    report = export_index(index, "parquet", "a.parquet", columns=["year"])
    assert_type(report, ExportReport)
    assert_type(report.query, str)
    assert_type(import_index("a.parquet", "b.index", model="a-model", metric="dot"), Index)
