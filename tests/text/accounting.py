"""Read sources the strict way: every test that reads also counts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from sbert_search.records import Document
from sbert_search.text.documents import ColumnType, CorpusReader, FieldNames, Reject, Survey


def zstd(data: bytes) -> bytes:
    """Compress to one frame."""
    frame: bytes = pa.compress(data, "zstd", asbytes=True)
    return frame


def read_all(
    *sources: str | Path,
    fields: FieldNames | None = None,
    columns: dict[str, ColumnType] | None = None,
    batch_rows: int = 2,
) -> tuple[list[Document], list[Reject], Survey]:
    """Read with on_error="skip" and check that documents and rejects add up to the rows."""
    reader = CorpusReader(
        sources, fields=fields, on_error="skip", columns=columns, batch_rows=batch_rows
    )
    survey = reader.survey()
    documents, rejects, rows_end = [], [], 0
    for batch in reader.batches():
        documents += batch.documents
        rejects += batch.rejects
        assert batch.rows_end == len(documents) + len(rejects)
        assert batch.rows_end - rows_end <= batch_rows
        rows_end = batch.rows_end
    assert rows_end == survey.rows
    assert len(rejects) == survey.rejected
    return documents, rejects, survey
