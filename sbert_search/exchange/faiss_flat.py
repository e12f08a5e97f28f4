"""Export of an index to an exact FAISS file of vectors and a Parquet file of passages."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from sbert_search.base import files
from sbert_search.errors import ConfigError
from sbert_search.exchange.parquet_file import write_rows
from sbert_search.exchange.plan import ExportPlan
from sbert_search.exchange.snippets import question_vector
from sbert_search.index.dense.faiss_runtime import FaissIndex, import_faiss
from sbert_search.index.storage.manifest import Metric


def sidecar(out: Path) -> Path:
    """Return the path of the Parquet file beside a FAISS file; its row n describes vector n."""
    return out.with_name(f"{out.name}.ids.parquet")


def write_faiss(plan: ExportPlan, out: Path) -> None:
    """Write the vectors as an exact FAISS index, and the passages to the file beside it.

    The vectors are written block by block, so that they are never in memory together. Both files
    are written under temporary names. Then an older FAISS file is removed, the Parquet file is
    renamed to its final name, and the FAISS file is renamed last. An interrupted export therefore
    leaves no FAISS file without its ids, or with the ids of another export.

    Raises:
        ConfigError: FAISS is not installed, or writes its exact index in an unknown form.
        OSError: The disk failed. An older FAISS file at ``out`` is unchanged or has been removed.
    """
    start = _header(plan.metric, plan.dim, plan.snapshot.n_rows)
    with files.replacing(out) as file:
        file.write(start)
        for block in plan.passages():
            file.write(block.vectors.astype("<f4", copy=False))
        with files.replacing(sidecar(out), ready=partial(_remove, out)) as ids:
            write_rows(plan, ids, vectors=False)


def _remove(out: Path) -> None:
    """Remove an older FAISS file, and wait until the removal is on the disk."""
    files.remove_tree(out)
    files.disk.fsync_folder(out.absolute().parent)


def query_of(plan: ExportPlan, out: Path) -> str:
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

    Raises:
        ConfigError: FAISS is not installed, or the two files with one vector differ.
    """
    faiss = import_faiss()
    kind = faiss.IndexFlatL2 if metric == "euclidean" else faiss.IndexFlatIP
    one = kind(dim)
    one.add(np.ones((1, dim), np.float32))
    if _with_counts(faiss, kind(dim), dim, 1) + b"\0\0\x80\x3f" * dim != _bytes(faiss, one):
        raise ConfigError(
            f"FAISS {faiss.__version__} writes exact indexes in a form that this version of "
            "sbert-search does not know. Install an older faiss-cpu."
        )
    return _with_counts(faiss, kind(dim), dim, n_vectors)


def _with_counts(faiss: FaissIndex, empty: FaissIndex, dim: int, n_vectors: int) -> bytes:
    data = bytearray(_bytes(faiss, empty))
    data[8:16] = n_vectors.to_bytes(8, "little")
    data[-8:] = (n_vectors * dim).to_bytes(8, "little")
    return bytes(data)


def _bytes(faiss: FaissIndex, index: FaissIndex) -> bytes:
    return bytes(faiss.serialize_index(index))
