"""Writing an index to files: Parquet for any engine, or exact FAISS with Parquet for passages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sbert_search.base import files
from sbert_search.base.files import NewFile
from sbert_search.errors import ConfigError
from sbert_search.exchange.passages import Passages
from sbert_search.exchange.plan import VECTOR, ExportPlan, question_vector
from sbert_search.index.building.parquet import MODEL_KEY
from sbert_search.index.dense.faiss_runtime import import_faiss
from sbert_search.index.storage.columns import ARROW_TYPES
from sbert_search.index.storage.manifest import Metric

METRIC_KEY = "sbert_search.metric"  # key in the file's metadata for the metric
DTYPE_KEY = "sbert_search.dtype"  # key for the type in which the index stores its vectors
GROUP_ROWS = 16_384
GROUP_BYTES = 64 << 20

_SCORES = {
    "cosine": "vectors @ query / np.linalg.norm(query)",
    "dot": "vectors @ query",
    "euclidean": "-np.linalg.norm(vectors - query, axis=1)",
}


def write_rows(plan: ExportPlan, file: NewFile, *, vectors: bool) -> None:
    """Write a row for each passage to an open file; ``vectors`` adds a last column with them."""
    schema = _schema(plan, vectors)
    with pq.ParquetWriter(cast(IO[bytes], file), schema) as writer:
        for group in row_groups(plan.passages()):
            writer.write_table(pa.concat_tables(_table(block, schema) for block in group))


def row_groups(blocks: Iterable[Passages]) -> Iterator[list[Passages]]:
    """Join blocks into groups of `GROUP_ROWS` or `GROUP_BYTES`: small groups are slow to read."""
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


def parquet_query(plan: ExportPlan, out: Path) -> str:
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


def sidecar(out: Path) -> Path:
    """Return the path of the Parquet file beside a FAISS file; its row n describes vector n."""
    return out.with_name(f"{out.name}.ids.parquet")


def write_faiss(plan: ExportPlan, out: Path) -> None:
    """Write the vectors as an exact FAISS index, and the passages to the file beside it.

    The vectors are written block by block, so that they are never in memory together. Both files
    are written under temporary names. Then an older FAISS file is removed, the Parquet file is
    renamed to its final name, and the FAISS file is renamed last. An interrupted export therefore
    leaves no FAISS file without its ids, or with the ids of another export.
    """
    start = _header(plan.metric, plan.dim, plan.snapshot.n_rows)
    with files.replacing(out) as file:
        file.write(start)
        for block in plan.passages():
            file.write(block.vectors.astype("<f4", copy=False))
        with files.replacing(sidecar(out), ready=partial(_remove, out)) as ids:
            write_rows(plan, ids, vectors=False)


def _remove(out: Path) -> None:
    files.remove_tree(out)
    files.disk.fsync_folder(out.absolute().parent)


def faiss_query(plan: ExportPlan, out: Path) -> str:
    """Return Python code that searches the FAISS file."""
    unit = "faiss.normalize_L2(query)\n" if plan.metric == "cosine" else ""
    return (
        "import faiss\n"
        "import numpy as np\n"
        "import pyarrow.parquet as pq\n\n"
        f"{question_vector(plan)}"
        f"index = faiss.read_index({str(out)!r})\n"
        f"ids = pq.read_table({str(sidecar(out))!r}, columns=['doc_id', 'chunk'])\n"
        f"query = np.array([vector], np.float32)\n{unit}"
        "scores, rows = index.search(query, 10)\n"
        "for row, score in zip(rows[0].tolist(), scores[0], strict=True):\n"
        "    if row >= 0:  # FAISS fills missing results with -1\n"
        "        print(ids['doc_id'][row], ids['chunk'][row], score)\n"
    )


def _header(metric: Metric, dim: int, n_vectors: int) -> bytes:
    """Return the bytes that precede the vectors in the file of an exact FAISS index.

    The bytes are made from an empty index: the number of vectors and the total number of their
    components are written into its file header. A new version of FAISS may change the format.
    Therefore a file with one vector is made in the same way, and compared with the file that FAISS
    writes for this vector.
    """
    faiss = import_faiss()
    kind = faiss.IndexFlatL2 if metric == "euclidean" else faiss.IndexFlatIP
    one = kind(dim)
    one.add(np.ones((1, dim), np.float32))
    empty = bytes(faiss.serialize_index(kind(dim)))
    if _with_counts(empty, dim, 1) + b"\0\0\x80\x3f" * dim != bytes(faiss.serialize_index(one)):
        raise ConfigError(
            f"FAISS {faiss.__version__} writes exact indexes in a form that this version of "
            "sbert-search does not know. Install an older faiss-cpu."
        )
    return _with_counts(empty, dim, n_vectors)


def _with_counts(empty: bytes, dim: int, n_vectors: int) -> bytes:
    return (
        empty[:8]
        + n_vectors.to_bytes(8, "little")
        + empty[16:-8]
        + (n_vectors * dim).to_bytes(8, "little")
    )
