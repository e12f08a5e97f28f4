"""Importing Parquet files, among them those of `export_index` and of the command `embed`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sbert_search.base.progress import note
from sbert_search.errors import CorpusError
from sbert_search.exchange.importing.found import FIELDS, Asked, Found
from sbert_search.exchange.parquet_file import DTYPE_KEY, METRIC_KEY
from sbert_search.exchange.passages import OWN
from sbert_search.exchange.plan import VECTOR
from sbert_search.index.building.parquet import MODEL_KEY, recorded_model
from sbert_search.index.storage.columns import unlike
from sbert_search.index.storage.manifest import Metric, VectorType

VECTOR_FIELDS = (VECTOR, "embedding", "embeddings", "vectors")
DOCUMENT = "document"  # metadata column with the id of a passage's document
_OWN_OF_EMBED = ("doc_id", "chunk", "text", "n_tokens", "lost_tokens")
_BATCH_ROWS = 1024


def found_in_parquet(path: Path, asked: Asked, *, has_vectors: bool = False) -> Found:
    """Find the vectors, ids, texts and metadata of a Parquet file.

    If this package wrote the file, and the file has documents of several passages, each passage
    becomes a document. Its id is the ``doc_id`` in the file, ``#`` and the number of the passage,
    such as ``d7#2``. The metadata column ``document`` has the ``doc_id``.

    Args:
        path: The file.
        asked: Names of fields that the user gave.
        has_vectors: Whether the caller has the vectors already, from another file.

    Raises:
        CorpusError: The file cannot be read, or has no column of vectors.
        ConfigError: The user gave an option that has no effect on the file.
    """
    asked.require_only(str(path), "--ids" if has_vectors else "--vector-field", *FIELDS)
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise CorpusError(f"{path}: cannot be read as Parquet: {error}.") from error
    stated = schema.metadata or {}
    field = None if has_vectors else asked.fields.vector or vector_field(schema, str(path))
    metric = stated.get(METRIC_KEY.encode(), b"").decode()
    dtype = stated.get(DTYPE_KEY.encode(), b"").decode()
    found = Found(
        rows=[path],
        fields=replace(asked.fields, vector=field),
        metric=cast(Metric, metric) if metric in get_args(Metric) else None,
        dtype=cast(VectorType, dtype) if dtype in get_args(VectorType) else None,
        recorded=recorded_model(schema, field),
    )
    is_ours = MODEL_KEY.encode() in stated and "doc_id" in schema.names
    if not is_ours or asked.fields.id is not None:
        return found
    own = OWN if METRIC_KEY.encode() in stated else _OWN_OF_EMBED  # embed states no metric
    known = {*own, *asked.fields.texts, *filter(None, [field, asked.fields.title])}
    metadata = [name for name in schema.names if name not in known]
    if "chunk" not in schema.names or not _has_later_passages(path):
        fields = replace(found.fields, id="doc_id")  # a metadata column may be called _id
        return replace(found, fields=fields, metadata_fields=tuple(metadata))
    note(f"{path} has documents of several passages; each passage becomes a document.")
    names = unlike(metadata, {"_id", DOCUMENT})
    named = _named(schema, names)
    return replace(
        found,
        rows=pa.RecordBatchReader.from_batches(named, _passages(path, named)),
        fields=replace(found.fields, id="_id"),
        metadata_fields=(DOCUMENT, "chunk", *names.values()),
    )


def vector_field(schema: pa.Schema, shown: str) -> str:
    """Return the name of the column of vectors.

    Raises:
        CorpusError: No column has lists of floats, or several have, and `VECTOR_FIELDS` names none
            of them.
    """
    lists = [field.name for field in schema if _is_vector(field.type)]
    known = [name for name in VECTOR_FIELDS if name in lists]
    if known or len(lists) == 1:
        return (known or lists)[0]
    which = f"several: {', '.join(map(repr, lists))}" if lists else "none"
    raise CorpusError(
        f"{shown}: of the columns with lists of floats, which could be the vectors, there are "
        f"{which}. Name the column with --vector-field."
    )


def _is_vector(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list and not pa.types.is_fixed_size_list(kind):
        return False
    return bool(pa.types.is_floating(kind.value_type))


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, pa.ArrowException) as error:
        raise CorpusError(f"{path}: cannot be read as Parquet: {error}.") from error


def _has_later_passages(path: Path) -> bool:
    with _opened(path) as file:
        batches = file.iter_batches(columns=["chunk"])
        return any(pc.max(batch.column(0)).as_py() for batch in batches if batch.num_rows)


def _named(schema: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a file whose passages become documents.

    Args:
        schema: The schema of the file.
        names: The new name of each metadata column.
    """
    kept = [f.with_name(names.get(f.name, f.name)) for f in schema if f.name != "doc_id"]
    own = [pa.field("_id", pa.large_string()), pa.field(DOCUMENT, pa.large_string())]
    return pa.schema([*own, *kept])


def _passages(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with _opened(path) as file:
        kept = [at for at, name in enumerate(file.schema_arrow.names) if name != "doc_id"]
        for batch in file.iter_batches(_BATCH_ROWS):
            documents = batch.column("doc_id").cast(pa.large_string())
            chunks = batch.column("chunk").cast(pa.large_string())
            ids = pc.binary_join_element_wise(documents, chunks, pa.scalar("#", pa.large_string()))
            rest = [batch.column(at) for at in kept]
            yield pa.RecordBatch.from_arrays([ids, documents, *rest], schema=schema)
