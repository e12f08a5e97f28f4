"""Importing FAISS files that store vectors unchanged: flat and HNSW, with or without ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import CorpusError
from sbert_search.exchange.importing.found import Asked, Found
from sbert_search.exchange.importing.ids import with_ids
from sbert_search.index.dense.faiss_runtime import FaissIndex, import_faiss, limited_to_file
from sbert_search.index.storage.manifest import Metric
from sbert_search.text.vectors import RowVectors


def found_in_faiss(path: Path, asked: Asked) -> Found:
    """Find the vectors, the metric and the ids of a FAISS file; the vectors are memory-mapped.

    Raises:
        CorpusError: The file cannot be read, is of a type that does not store vectors unchanged, or
            has another metric than inner product and L2.
        ConfigError: FAISS is not installed, or the user gave an option that has no effect on the
            file.
    """
    faiss = import_faiss()
    try:
        with limited_to_file(path.stat().st_size):
            whole = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1]
        raise CorpusError(f"{path}: cannot be read as a FAISS index: {reason}") from error
    index, ids = whole, None
    if isinstance(whole, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        ids = faiss.vector_to_array(whole.id_map)
        index = faiss.downcast_index(whole.index)
    flat = faiss.downcast_index(index.storage) if isinstance(index, faiss.IndexHNSW) else index
    if not isinstance(flat, faiss.IndexFlat):
        raise CorpusError(
            f"{path}: an index of type {type(index).__name__}, which does not store its vectors "
            "as they were given. Import the vectors from which it was built, as .npy or Parquet."
        )
    metrics: Mapping[int, Metric] = {
        faiss.METRIC_INNER_PRODUCT: "dot",
        faiss.METRIC_L2: "euclidean",
    }
    if index.metric_type not in metrics:
        raise CorpusError(
            f"{path}: compares vectors by the FAISS metric {index.metric_type}; only inner "
            "product and L2 can be imported."
        )
    vectors = RowVectors(_rows(faiss, flat), str(path))
    found = Found(
        vectors=vectors, ids=ids, metric=metrics[index.metric_type], keeps=(whole, index, flat)
    )
    if ids is None or asked.ids is not None:
        return with_ids(found, path, asked)
    asked.require_only(f"{path}, which has ids of its own")
    return found


def _rows(faiss: FaissIndex, flat: FaissIndex) -> NDArray[np.float32]:
    """Return the vectors of an exact index, float32 (n, d), without a copy if they lie row by row.

    Some subclasses of IndexFlat store them otherwise, for example in blocks (Panorama).
    """
    if not flat.ntotal:
        return np.empty((0, flat.d), np.float32)
    if type(flat) not in (faiss.IndexFlat, faiss.IndexFlatL2, faiss.IndexFlatIP):
        vectors: NDArray[np.float32] = flat.reconstruct_n(0, flat.ntotal)
        return vectors
    view: NDArray[np.float32] = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d)
    return view.reshape(flat.ntotal, flat.d)
