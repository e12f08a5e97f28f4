"""Writing the passages of an index to a Parquet file, for any engine that reads Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from sbert_search.base.files import NewFile, replacing
from sbert_search.exchange.passages import Passages
from sbert_search.exchange.plan import VECTOR, ExportPlan
from sbert_search.exchange.snippets import question_vector
from sbert_search.index.building.parquet import MODEL_KEY
from sbert_search.index.storage.columns import ARROW_TYPES

METRIC_KEY = "sbert_search.metric"  # key in the file's metadata for the metric
DTYPE_KEY = "sbert_search.dtype"  # key for the type in which the index stores its vectors
GROUP_ROWS = 16_384
GROUP_BYTES = 64 << 20

_SCORES = {
    "cosine": "vectors @ query / np.linalg.norm(query)",
    "dot": "vectors @ query",
    "euclidean": "-np.linalg.norm(vectors - query, axis=1)",
}


def write_parquet(plan: ExportPlan, out: Path) -> None:
    """Write a row for each passage; the file appears under its name when it is complete.

    Args:
        plan: What to write.
        out: The file.

    Raises:
        OSError: The disk failed; an older file of that name is unchanged.
    """
    with replacing(out) as file:
        write_rows(plan, file, vectors=True)


def write_rows(plan: ExportPlan, file: NewFile, *, vectors: bool) -> None:
    """Write a row for each passage to an open file.

    Args:
        plan: What to write.
        file: The file.
        vectors: Whether the last column has the vectors.
    """
    schema = _schema(plan, vectors)
    with pq.ParquetWriter(cast(IO[bytes], file), schema) as writer:
        for group in grouped(plan.passages()):
            writer.write_table(pa.concat_tables(_table(block, schema) for block in group))


def grouped(blocks: Iterable[Passages]) -> Iterator[list[Passages]]:
    """Join blocks into row groups; a group is full at `GROUP_ROWS` rows or `GROUP_BYTES` bytes.

    Many small row groups would be slow to read.
    """
    group, n_rows, n_bytes = list[Passages](), 0, 0
    for block in blocks:
        group.append(block)
        n_rows += len(block.rows)
        n_bytes += block.table.nbytes + block.vectors.nbytes
        if n_rows >= GROUP_ROWS or n_bytes >= GROUP_BYTES:
            yield group
            group, n_rows, n_bytes = [], 0, 0
    if group:
        yield group


def query_of(plan: ExportPlan, out: Path) -> str:
    """Return code that ranks the passages of the file."""
    return (
        "import numpy as np\n"
        "import pyarrow.parquet as pq\n\n"
        f"{question_vector(plan)}"
        f"table = pq.read_table({str(out)!r})\n"
        f"vectors = table[{VECTOR!r}].combine_chunks().flatten().to_numpy()"
        f".reshape(-1, {plan.dim})\n"
        "query = np.array(vector, np.float32)\n"
        f"scores = {_SCORES[plan.metric]}\n"
        "for row in np.argsort(-scores, kind='stable')[:10].tolist():\n"
        "    print(table['doc_id'][row], table['chunk'][row], scores[row])\n"
    )


def _schema(plan: ExportPlan, vectors: bool) -> pa.Schema:
    fields = [
        pa.field("doc_id", pa.large_string()),
        pa.field("chunk", pa.int32()),
        pa.field("char_start", pa.int64()),
        pa.field("char_end", pa.int64()),
        pa.field("title", pa.large_string()),
        pa.field("text", pa.large_string()),
        *(pa.field(name, ARROW_TYPES[kind]) for name, kind in plan.kinds.items()),
    ]
    if vectors:
        fields.append(pa.field(VECTOR, pa.list_(pa.float32(), plan.dim)))
    described = {
        MODEL_KEY: json.dumps(plan.identity.to_mapping()),
        METRIC_KEY: plan.metric,
        DTYPE_KEY: plan.snapshot.settings.dtype,
    }
    return pa.schema(fields, described)


def _table(block: Passages, schema: pa.Schema) -> pa.Table:
    table = block.table
    if VECTOR in schema.names:
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(block.vectors.reshape(-1)), block.vectors.shape[1]
        )
        table = table.append_column(VECTOR, column)
    return table.select(schema.names).cast(schema)
