"""Making FAISS indexes: refuse what does not fit, train once, fill, write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import ConfigError
from sbert_search.index.dense import faiss_gpu
from sbert_search.index.dense.faiss_runtime import import_faiss, single_threaded
from sbert_search.index.norms import Vectors
from sbert_search.index.spec import IndexSpec
from sbert_search.index.storage.manifest import FileRecord, Metric, StoreSettings
from sbert_search.index.storage.segment_writer import record_of
from sbert_search.runtime import memory
from sbert_search.runtime.disk import files
from sbert_search.runtime.disk.folders import Folder
from sbert_search.runtime.progress import Advance, note, progress

ADD_ROWS = 16_384  # vectors handed to FAISS at a time
ROWS_PER_LIST = 64  # training vectors a centroid; more cost time and hardly move recall
ROWS_FOR_CODES = 65_536  # training vectors of codes: 256 a codeword
LIST_GROWTH = 1.5  # memory of growing lists over that of full ones


def build_bytes(spec: IndexSpec, n_rows: int, dim: int) -> int:
    """Predict the most memory that making a FAISS index of a segment takes, in bytes."""
    if spec.is_flat:
        return 0
    growth = LIST_GROWTH if spec.n_lists else 1.0
    blocks = 3 * 4 * ADD_ROWS * dim  # vectors read, transformed, encoded
    return int(growth * spec.predicted_bytes(n_rows, dim)) + blocks


def require_memory(settings: StoreSettings, n_rows: int, memory_bytes: int | None) -> None:
    """Refuse, before any work, a FAISS index that a budget for this process cannot hold.

    Args:
        settings: Of the index: length and spec.
        n_rows: Vectors of the largest segment.
        memory_bytes: The budget, of which what the process already holds is taken; None: no limit.

    Raises:
        ConfigError: With the bytes predicted.
    """
    spec = settings.spec
    memory.require(
        memory_bytes,
        build_bytes(spec, n_rows, settings.dim),
        f"Making {spec.factory} of {n_rows:,} vectors of {settings.dim} numbers",
    )


def require_possible(settings: StoreSettings) -> None:
    """Refuse, before any work, a spec that FAISS cannot make for vectors of this length.

    Raises:
        ConfigError: With FAISS's reason.
    """
    if not settings.spec.is_flat and (reason := _refusal(settings)):
        raise ConfigError(
            f"index.factory is {settings.spec.factory!r}, which vectors of {settings.dim} numbers "
            f"cannot have: {reason}."
        )


def _refusal(settings: StoreSettings) -> str:
    """Say why FAISS cannot make an index, or would not train it; "" if it can."""
    faiss = import_faiss()
    try:
        index = empty_index(settings.spec, settings.dim, settings.metric)
    except RuntimeError as error:
        return re.sub(r"^Error in .*\.cpp:\d+: (Error: '.*' failed: )?", "", str(error))
    chain = index.chain if isinstance(index, faiss.IndexPreTransform) else None
    steps = [chain.at(i) for i in range(chain.size())] if chain else []
    wider = any(step.d_out > step.d_in for step in steps)
    return "a transform cannot give more numbers than it takes" if wider else ""


def train(
    samples: Sequence[Vectors], settings: StoreSettings, memory_bytes: int | None = None
) -> Any | None:
    """Train an empty FAISS index on some vectors of every segment.

    Args:
        samples: Mapped vectors of each segment, (n_rows, dim).
        settings: Of the index: length, metric and spec.
        memory_bytes: The training vectors take at most a quarter of it; None: no limit.

    Returns:
        The empty index, or None when there are too few vectors to train it; a note says so.
    """
    spec, n_rows = settings.spec, sum(len(sample) for sample in samples)
    if n_rows < spec.min_training_rows:
        note(
            f"{spec.factory} needs at least {spec.min_training_rows:,} vectors to train on and "
            f"there are {n_rows:,}: searching exactly instead."
        )
        return None
    index = empty_index(spec, settings.dim, settings.metric)
    if not index.is_trained:
        wanted = max(spec.n_lists * ROWS_PER_LIST, ROWS_FOR_CODES)
        if memory_bytes is not None:
            wanted = min(wanted, max(memory_bytes // (4 * 4 * settings.dim), 1))
        sample = _evenly(samples, wanted)
        device = faiss_gpu.can_hold(index, len(sample))
        trained = faiss_gpu.train(device, index, sample) if device else None
        if trained is not None:
            return trained
        train_on(index, sample)
    return index


def empty_index(spec: IndexSpec, dim: int, metric: Metric) -> Any:
    """Make a FAISS index that is neither trained nor filled."""
    faiss = import_faiss()
    kind = faiss.METRIC_L2 if metric == "euclidean" else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(dim, spec.factory, kind)
    if spec.is_hnsw:
        faiss.ParameterSpace().set_index_parameter(index, "efConstruction", spec.ef_construction)
    return index


def train_on(index: Any, vectors: NDArray[np.float32]) -> None:
    """Train a FAISS index on vectors, (n, dim).

    Codes are trained by one thread: their many small clusterings take 20 times as long by two on a
    busy machine, where threads wait for each other at every step.
    """
    faiss = import_faiss()
    inner = faiss.downcast_index(index)
    if isinstance(inner, faiss.IndexIVF):
        inner.cp.max_points_per_centroid = ROWS_PER_LIST
        inner.train_q1(len(vectors), faiss.swig_ptr(vectors), False, inner.metric_type)
    with single_threaded():
        index.train(vectors)


def fill(begun: Any, vectors: Vectors, advance: Advance = lambda n: None) -> Any:
    """Add vectors, (n_rows, dim), to a copy of a trained index; those that it holds stay first.

    An index that holds some is added to itself: a copy of it may not fit.
    """
    faiss = import_faiss()
    index = begun if begun.ntotal else faiss.clone_index(begun)
    advance(index.ntotal)
    _reserve(index, len(vectors))
    for start in range(index.ntotal, len(vectors), ADD_ROWS):
        block = np.ascontiguousarray(vectors[start : start + ADD_ROWS], dtype=np.float32)
        index.add(block)
        advance(len(block))
    return index


def write(folder: Folder, number: int, begun: Any, vectors: Vectors) -> FileRecord:
    """Fill a copy of a trained index with the vectors of a segment, and write it.

    It is filled on a GPU where there is one that can.

    Args:
        folder: The index.
        number: A file number that no file has yet.
        begun: What `train` returned, or an index that holds the first of the vectors.
        vectors: (n_rows, dim).

    Raises:
        OSError: The disk failed.
    """
    faiss = import_faiss()
    with progress("Building the search index", len(vectors), "vectors") as advance:
        device = faiss_gpu.can_hold(begun, len(vectors))
        index = faiss_gpu.fill(device, begun, vectors, advance) if device else None
        if index is None:
            index = fill(begun, vectors, advance)
    with files.NewFile(folder / f"ann/{number:06d}.faiss") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
    return record_of(file)


def _reserve(index: Any, n_rows: int) -> None:
    """Let the vectors below a graph have their place at once: growing would hold them twice."""
    faiss = import_faiss()
    inner = faiss.downcast_index(index)
    if isinstance(inner, faiss.IndexHNSW):
        storage = faiss.downcast_index(inner.storage)
        storage.codes.resize(n_rows * storage.code_size)
        storage.codes.resize(index.ntotal * storage.code_size)


def _evenly(samples: Sequence[Vectors], wanted: int) -> NDArray[np.float32]:
    """Take about ``wanted`` vectors at equal distances from all samples, float32 (n, dim)."""
    step = max(1, -(-sum(len(sample) for sample in samples) // wanted))
    taken = [sample[::step] for sample in samples]  # views: nothing is read yet
    vectors = np.empty((sum(map(len, taken)), samples[0].shape[1]), np.float32)
    np.concatenate(taken, out=vectors, casting="same_kind")
    return vectors
