"""`export_index`: write an index in the form that another engine imports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from sbert_search.errors import ConfigError
from sbert_search.exchange import faiss_flat, parquet_file
from sbert_search.exchange.plan import TARGETS, ExportPlan, ExportReport, Target
from sbert_search.index.index import Index
from sbert_search.runtime.disk.same_file import require_apart, require_possible_output
from sbert_search.shards.index import open_index


def export_index(
    index: Index | str | Path,
    to: Target,
    out: str | Path | None = None,
    *,
    columns: Sequence[str] | None = None,
) -> ExportReport:
    """Write the passages of an index, with vectors and metadata, for another engine.

    Deleted and replaced documents are left out. The vectors are those of the index; no text is
    embedded again.

    Args:
        index: The index or its folder.
        to: The engine or format: ``parquet``, a file for any engine; or ``faiss``, an exact FAISS
            index, with a Parquet file of ids, texts and metadata beside it.
        out: The file to write.
        columns: Metadata columns to export; None: all.

    Raises:
        ConfigError: ``to`` is unknown, ``out`` is missing or lies in the index, or there is no such
            column.
        IndexStoreError: The index is an unfinished build, or cannot be read.
        OSError: The disk failed.
    """
    started = time.perf_counter()
    if to not in TARGETS:
        raise ConfigError(f"to is {to!r}; it must be one of {', '.join(TARGETS)}.")
    opened = index if isinstance(index, Index) else open_index(index)
    opened.require_finished()
    if out is None:
        raise ConfigError(f"An export to {to} writes a file; name it with --out.")
    path = Path(out)
    plan = ExportPlan.of(opened.state, columns, words_only=False)
    files = [path] if to == "parquet" else [faiss_flat.sidecar(path), path]
    for file in files:
        require_possible_output(file, "--out")
        require_apart(file, [opened.path], "--out")
    if to == "parquet":
        parquet_file.write_parquet(plan, path)
        query = parquet_file.query_of(plan, path)
    else:
        faiss_flat.write_faiss(plan, path)
        query = faiss_flat.query_of(plan, path)
    return ExportReport(
        to=to,
        documents=plan.snapshot.n_docs,
        passages=plan.snapshot.n_rows,
        files=tuple(files),
        fields=plan.fields,
        query=query,
        seconds=time.perf_counter() - started,
    )
