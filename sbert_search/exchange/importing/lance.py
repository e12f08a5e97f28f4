"""Importing from the folder of a LanceDB database, or of one of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from sbert_search.errors import CorpusError
from sbert_search.exchange.extras import needs
from sbert_search.exchange.importing.chroma import chosen
from sbert_search.exchange.importing.found import FIELDS, Asked, Found
from sbert_search.exchange.importing.parquet import vector_field
from sbert_search.index.storage.manifest import Metric

ENDING = ".lance"
_BATCH_ROWS = 1024


class _Named(Protocol):
    name: str
    columns: Sequence[str]


class _Statistics(Protocol):
    distance_type: str | None


class _Table(Protocol):
    """The methods of a LanceDB table that are used here."""

    def list_indices(self) -> Iterable[_Named]: ...

    def index_stats(self, index_name: str, /) -> _Statistics | None: ...


_METRICS: Mapping[str, Metric] = {"cosine": "cosine", "dot": "dot", "l2": "euclidean"}


def found_in_lance(folder: Path, asked: Asked) -> Found:
    """Find the vectors, ids, texts and metadata of a table, which is read batch by batch.

    The metric is that of the table's vector index. Without an index it is ``euclidean``, LanceDB's
    default.

    Raises:
        ConfigError: lancedb is not installed, or the user gave an option that has no effect here.
        CorpusError: There is no such table, it has no column of vectors, or its index compares
            vectors by another metric and the user named none.
    """
    table_option = () if folder.suffix == ENDING else ("--table",)
    asked.require_only(f"the LanceDB folder {folder}", *table_option, *FIELDS, "--vector-field")
    if folder.suffix == ENDING:
        folder, asked = folder.parent, replace(asked, table=folder.stem)
    names = sorted(path.stem for path in folder.glob(f"*{ENDING}") if path.is_dir())
    name = chosen(asked.table, names, str(folder), "table")
    with needs("lancedb", "lancedb"):
        import lancedb
    table = lancedb.connect(str(folder)).open_table(name)
    field = asked.fields.vector or vector_field(table.schema, f"{folder}: {name}")
    batches = table.search().to_batches(_BATCH_ROWS)
    return Found(
        rows=pa.RecordBatchReader.from_batches(table.schema, batches),
        fields=replace(asked.fields, vector=field),
        metric=asked.metric or _metric_of(table, field, f"{folder}: {name}"),
        keeps=(table,),
    )


def _metric_of(table: _Table, field: str, shown: str) -> Metric:
    for index in table.list_indices():
        if list(index.columns) != [field]:
            continue
        stats = table.index_stats(index.name)
        distance = stats.distance_type if stats else None
        if distance is None or distance not in _METRICS:
            raise CorpusError(
                f"{shown}: the index compares vectors by {distance!r}, which this package does "
                "not. Name another metric with --metric."
            )
        return _METRICS[distance]
    return "euclidean"
