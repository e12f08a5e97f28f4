"""Approximate search of one segment by FAISS: a derived file that can always be made again.

FAISS computes; our own files write and check its bytes (its own writer can lose data on a full
disk and report success, its own reader parses damaged bytes).
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import ConfigError, CorruptIndex
from sbert_search.index.manifest import FileRecord, StoreSettings
from sbert_search.index.scan import Vectors
from sbert_search.index.segment_writer import record_of
from sbert_search.index.segments import check_hash, open_checked
from sbert_search.index.spec import IndexSpec
from sbert_search.runtime import files
from sbert_search.runtime.progress import note

ADD_ROWS = 65_536  # vectors handed to FAISS at a time
TRAINING_ROWS_WANTED = 256  # per centroid; FAISS itself samples down to this


class Ann:
    """A FAISS index in a file, mapped when opened, checked and parsed when first searched."""

    def __init__(self, folder: Path, record: FileRecord, shape: tuple[int, int]) -> None:
        self.record, self._shape = record, shape
        self._view = open_checked(folder, record, hash_up_to=0)

    @cached_property
    def index(self) -> Any | None:
        """The FAISS index, or None with a warning when it is damaged or FAISS is missing."""
        try:
            faiss = import_faiss()
            check_hash(self._view, self.record)
            index = faiss.read_index(faiss.PyCallbackIOReader(_Reader(self._view)))
            if (index.ntotal, index.d) != self._shape:
                raise CorruptIndex(self.record.name, f"{self._shape}", f"{(index.ntotal, index.d)}")
            return index
        except (ConfigError, CorruptIndex, RuntimeError) as error:
            warnings.warn(f"Searching without {self.record.name}: {error}", stacklevel=2)
            return None


class _Reader:
    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def __call__(self, size: int) -> bytes:
        data = bytes(self._view[self._at : self._at + size])
        self._at += len(data)
        return data


def import_faiss() -> Any:
    """Load FAISS.

    Raises:
        ConfigError: It is not installed.
    """
    require_faiss()
    import faiss

    return faiss


def require_faiss() -> None:
    """Fail early where FAISS is needed and not installed, without loading it.

    Raises:
        ConfigError: It is not installed.
    """
    if importlib.util.find_spec("faiss") is None:
        raise ConfigError(
            "FAISS is not installed; run `python -m pip install 'sbert-search[cpu]'`, "
            "or use the index spec Flat."
        )


def require_memory(settings: StoreSettings, n_rows: int, memory_bytes: int | None) -> None:
    """Refuse, before any work, a FAISS index that would not fit a memory budget.

    Args:
        settings: Of the index: length and spec.
        n_rows: Vectors of the largest segment.
        memory_bytes: The budget; None: no limit.

    Raises:
        ConfigError: With the bytes predicted.
    """
    predicted = settings.spec.predicted_bytes(n_rows, settings.dim)
    if memory_bytes is not None and predicted > memory_bytes:
        raise ConfigError(
            f"{settings.spec.factory} over {n_rows:,} vectors of {settings.dim} numbers takes "
            f"about {predicted / 2**20:,.0f} MiB and --memory allows "
            f"{memory_bytes / 2**20:,.0f}; allow more, or use "
            "a smaller spec such as IVF4096,SQ8, or Flat."
        )


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
    faiss = import_faiss()
    metric = faiss.METRIC_L2 if settings.metric == "euclidean" else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(settings.dim, spec.factory, metric)
    if spec.is_hnsw:
        faiss.ParameterSpace().set_index_parameter(index, "efConstruction", spec.ef_construction)
    if not index.is_trained:
        wanted = max(spec.n_lists, 256) * TRAINING_ROWS_WANTED
        if memory_bytes is not None:
            wanted = min(wanted, max(memory_bytes // (4 * 4 * settings.dim), 1))
        index.train(_evenly(samples, wanted))
    return index


def write(folder: Path, number: int, empty: Any, vectors: Vectors) -> FileRecord:
    """Fill a copy of a trained index with the vectors of a segment and write it.

    Args:
        folder: The index.
        number: A file number that no file has yet.
        empty: What `train` returned.
        vectors: (n_rows, dim).

    Raises:
        OSError: The disk failed.
    """
    faiss = import_faiss()
    index = faiss.clone_index(empty)
    for start in range(0, len(vectors), ADD_ROWS):
        index.add(np.ascontiguousarray(vectors[start : start + ADD_ROWS], dtype=np.float32))
    with files.NewFile(folder / f"ann/{number:06d}.faiss") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
    return record_of(file, folder)


def search(
    index: Any,
    spec: IndexSpec,
    queries: NDArray[np.float32],
    k: int,
    wanted: NDArray[np.bool_] | None,
) -> NDArray[np.int64]:
    """Find candidates for the best k positions of each query.

    Args:
        index: What `Ann.index` gave.
        spec: Search parameters.
        queries: float32 (n_queries, dim).
        k: Results wanted; more candidates than that are fetched from compressed vectors.
        wanted: Which positions take part, bool (n_rows,); None means all.

    Returns:
        int64 (n_queries, candidates), -1 where there are no more.
    """
    n_candidates = min(k * spec.candidates_per_result, index.ntotal)
    bits = None if wanted is None else np.packbits(wanted, bitorder="little")
    parameters = _parameters(index, spec, n_candidates, bits)
    positions: NDArray[np.int64] = index.search(queries, n_candidates, params=parameters)[1]
    return positions


def _parameters(
    index: Any, spec: IndexSpec, n_candidates: int, bits: NDArray[np.uint8] | None
) -> Any:
    faiss = import_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        inner = _parameters(index.index, spec, n_candidates, bits)
        return faiss.SearchParametersPreTransform(index_params=inner)
    chosen = {} if bits is None else {"sel": faiss.IDSelectorBitmap(bits)}
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=min(spec.nprobe, index.nlist), **chosen)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=max(spec.ef_search, n_candidates), **chosen)
    return faiss.SearchParameters(**chosen)


def _evenly(samples: Sequence[Vectors], wanted: int) -> NDArray[np.float32]:
    """Take about ``wanted`` vectors at equal distances from all samples, float32 (n, dim)."""
    step = max(1, -(-sum(len(sample) for sample in samples) // wanted))
    return np.concatenate([sample[::step].astype(np.float32) for sample in samples])
