"""Build FAISS indexes: check memory and factory string, train, add the vectors, write a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import memory
from sbert_search.base.progress import Advance, note, progress
from sbert_search.errors import ConfigError
from sbert_search.index.dense import faiss_gpu
from sbert_search.index.dense.faiss_runtime import FaissIndex, import_faiss, single_threaded
from sbert_search.index.norms import Vectors
from sbert_search.index.settings import IndexSpec
from sbert_search.index.storage.manifest import FileRecord, Metric, VectorSettings

if TYPE_CHECKING:
    from sbert_search.index.storage.transaction import Transaction

ADD_ROWS = 16_384  # vectors added to FAISS at a time
ROWS_PER_LIST = 64  # training vectors per centroid; more take time and hardly improve recall
ROWS_FOR_CODES = 65_536  # training vectors for PQ codes: 256 for each of 256 codewords
LIST_GROWTH = 1.5  # peak memory of inverted lists while they grow, relative to their final size

# A filled index with inverted lists, and the position of each of its vectors in another index; -1:
# the other one lacks it. Both have the same training.
Filled: TypeAlias = tuple[FaissIndex, NDArray[np.int64]]


def build_bytes(spec: IndexSpec, n_rows: int, dim: int) -> int:
    """Predict the peak memory of building a FAISS index of a segment, in bytes."""
    if spec.is_flat:
        return 0
    growth = LIST_GROWTH if spec.n_lists else 1.0
    blocks = 3 * 4 * ADD_ROWS * dim  # one block each of read, transformed and encoded vectors
    return int(growth * spec.predicted_bytes(n_rows, dim)) + blocks


def require_memory(settings: VectorSettings, n_rows: int) -> None:
    """Refuse, before any work, a FAISS index that does not fit into the process's budget."""
    spec = settings.spec
    memory.require(
        build_bytes(spec, n_rows, settings.dim),
        f"Building {spec.factory} of {n_rows:,} vectors of {settings.dim} dimensions",
    )


def require_possible(settings: VectorSettings) -> None:
    """Refuse, before any work, a FAISS factory string that does not fit the vector dimensions."""
    if not settings.spec.is_flat and (reason := _refusal(settings)):
        raise ConfigError(
            f"index.factory is {settings.spec.factory!r}, which does not fit vectors of "
            f"{settings.dim} dimensions: {reason}. Use another factory string."
        )


def _refusal(settings: VectorSettings) -> str:
    """Return why FAISS cannot build or train an index; "" if it can."""
    faiss = import_faiss()
    try:
        index = empty_index(settings.spec, settings.dim, settings.metric)
    except RuntimeError as error:
        return re.sub(r"^Error in .*\.cpp:\d+: (Error: '.*' failed: )?", "", str(error))
    chain = index.chain if isinstance(index, faiss.IndexPreTransform) else None
    steps = [chain.at(i) for i in range(chain.size())] if chain else []
    wider = any(step.d_out > step.d_in for step in steps)  # FAISS notices only when it trains
    return "a transform cannot increase the number of dimensions" if wider else ""


def train(samples: Sequence[Vectors], settings: VectorSettings) -> FaissIndex | None:
    """Train an empty FAISS index on a sample of the vectors of all segments.

    The training vectors take at most about a quarter of the memory limit, but there is at least one
    for each centroid. None, with a note, if there are too few vectors to train.
    """
    spec, n_rows = settings.spec, sum(len(sample) for sample in samples)
    if n_rows < spec.min_training_rows:
        note(
            f"{spec.factory} needs at least {spec.min_training_rows:,} training vectors and there "
            f"are {n_rows:,}: searching exactly instead."
        )
        return None
    index = empty_index(spec, settings.dim, settings.metric)
    if not index.is_trained:
        n_training = max(spec.n_lists * ROWS_PER_LIST, ROWS_FOR_CODES)
        if (limit := memory.limit()) is not None:
            affordable = limit // (4 * 4 * settings.dim)
            n_training = min(n_training, max(affordable, spec.n_centroids))
        sample = _evenly(samples, n_training)
        device = faiss_gpu.gpu_for(index, len(sample))
        trained = faiss_gpu.train(device, index, sample) if device else None
        if trained is not None:
            return trained
        train_on(index, sample)
    return index


def empty_index(spec: IndexSpec, dim: int, metric: Metric) -> FaissIndex:
    """Create a FAISS index that has no vectors and, if its kind needs training, is not trained."""
    faiss = import_faiss()
    kind = faiss.METRIC_L2 if metric == "euclidean" else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(dim, spec.factory, kind)
    if spec.is_hnsw:
        faiss.ParameterSpace().set_index_parameter(index, "efConstruction", spec.ef_construction)
    return index


def train_on(index: FaissIndex, vectors: NDArray[np.float32]) -> None:
    """Train a FAISS index on vectors, (n, dim).

    All threads train the centroids of inverted lists, unless the index begins with a transform such
    as OPQ. One thread trains the rest, above all the codes: they need many small clusterings, in
    which several threads would wait for each other at every step.
    """
    faiss = import_faiss()
    inner = faiss.downcast_index(index)
    if isinstance(inner, faiss.IndexIVF):
        inner.cp.max_points_per_centroid = ROWS_PER_LIST
        inner.train_q1(len(vectors), faiss.swig_ptr(vectors), False, inner.metric_type)
    with single_threaded():
        index.train(vectors)


def fill(
    empty: FaissIndex,
    vectors: Vectors,
    advance: Advance = lambda n: None,
    filled: Sequence[Filled] = (),
) -> FaissIndex:
    """Add vectors (n_rows, dim) to a copy of a trained, empty index.

    Those that the indexes ``filled`` hold are copied from their inverted lists, which is much
    faster: the lists nearest to a vector are not looked up again.
    """
    faiss = import_faiss()
    # `clone_index` cannot copy every kind of index, such as RaBitQfs.
    index = faiss.deserialize_index(faiss.serialize_index(empty))
    _reserve(index, len(vectors))
    copied = np.zeros(len(vectors), bool)
    for _, positions in filled:
        copied[positions[positions >= 0]] = True
    if filled:
        _copy_lists(index, filled)
        index.ntotal = int(np.count_nonzero(copied))
        advance(index.ntotal)
    rest = np.flatnonzero(~copied)
    for start in range(0, len(rest), ADD_ROWS):
        at = rest[start : start + ADD_ROWS]
        block = np.ascontiguousarray(vectors[at[0] : at[-1] + 1], dtype=np.float32)
        if filled:
            index.add_with_ids(block[at - at[0]], at)
        else:
            index.add(block)
        advance(len(at))
    return index


def _copy_lists(index: FaissIndex, filled: Sequence[Filled]) -> None:
    """Copy the entries of inverted lists, with the positions that they have in the new index."""
    faiss = import_faiss()
    for number in range(index.nlist):
        for source, positions in filled:
            lists = source.invlists
            if n_entries := lists.list_size(number):
                at = positions[faiss.rev_swig_ptr(lists.get_ids(number), n_entries)]
                codes = faiss.rev_swig_ptr(lists.get_codes(number), n_entries * lists.code_size)
                codes = codes.reshape(n_entries, -1)[at >= 0]
                at = at[at >= 0]
                index.invlists.add_entries(
                    number, len(at), faiss.swig_ptr(at), faiss.swig_ptr(codes)
                )


def write(
    work: Transaction,
    empty: FaissIndex,
    vectors: Vectors,
    filled: Sequence[Filled] = (),
) -> FileRecord:
    """Fill a copy of a trained, empty index, and write it to a file.

    A GPU fills it if possible, unless inverted lists can be copied from the indexes ``filled``.
    """
    faiss = import_faiss()
    with progress("Building the search index", len(vectors), "vectors") as advance:
        device = None if filled else faiss_gpu.gpu_for(empty, len(vectors))
        index = faiss_gpu.fill(device, empty, vectors, advance) if device else None
        if index is None:
            index = fill(empty, vectors, advance, filled)
    with work.new_file(f"ann/{work.new_number():06d}.faiss") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
    return FileRecord.of(file)


def _reserve(index: FaissIndex, n_rows: int) -> None:
    """Allocate memory for all vectors of an empty HNSW graph, since growing may need twice as much.

    The codes are in a C++ ``std::vector``. The second resize empties it; its capacity stays.
    """
    faiss = import_faiss()
    inner = faiss.downcast_index(index)
    if isinstance(inner, faiss.IndexHNSW):
        storage = faiss.downcast_index(inner.storage)
        storage.codes.resize(n_rows * storage.code_size)
        storage.codes.resize(0)


def _evenly(samples: Sequence[Vectors], count: int) -> NDArray[np.float32]:
    """Take ``count`` vectors, or all, evenly spaced over all samples, as float32 (n, dim)."""
    n_rows = sum(len(sample) for sample in samples)
    count = min(count, n_rows)
    rows = np.arange(count) * n_rows // count
    vectors = np.empty((count, samples[0].shape[1]), np.float32)
    first = filled = 0  # of the sample: its first row, and the rows taken from earlier samples
    for sample in samples:
        inside = rows[(first <= rows) & (rows < first + len(sample))] - first
        for start in range(0, len(inside), ADD_ROWS):
            block = inside[start : start + ADD_ROWS]
            vectors[filled : filled + len(block)] = sample[block]
            filled += len(block)
        first += len(sample)
    return vectors
