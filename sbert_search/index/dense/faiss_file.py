"""Approximate search of one segment by FAISS: a derived file that can always be made again.

FAISS computes; our own files write and check its bytes (its own writer can lose data on a full
disk and report success, its own reader parses damaged bytes).
"""

from __future__ import annotations

import re
import warnings
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import ConfigError, CorruptIndex
from sbert_search.index.dense.faiss_runtime import import_faiss
from sbert_search.index.dense.query_plan import Plan, Selection
from sbert_search.index.spec import IndexSpec
from sbert_search.index.storage.manifest import FileRecord
from sbert_search.index.storage.segments import check_hash, open_checked
from sbert_search.runtime.disk.folders import Folder

if TYPE_CHECKING:
    from sbert_search.index.dense.faiss_gpu import GpuIndex

_KINDS = re.compile(r"Index(Flat(IP|L2)?|(HNSW|IVF|PQ|ScalarQuantizer|PreTransform|RaBitQ)\w*)")


class FaissFile:
    """A FAISS index in a file, mapped when opened, checked and parsed when first searched."""

    def __init__(self, folder: Folder, record: FileRecord, shape: tuple[int, int]) -> None:
        self.record, self._shape = record, shape
        self._view = open_checked(folder, record, hash_up_to=0)

    @cached_property
    def index(self) -> Any | None:
        """The FAISS index, or None with a warning when it is damaged or FAISS is missing.

        It reads its lists, codes and links where they lie: in the mapped file, not in memory.
        """
        return self._read(mapped=True)

    @cached_property
    def on_gpu(self) -> GpuIndex | None:
        """A copy on the GPU, where there is one that can hold it."""
        from sbert_search.index.dense import faiss_gpu

        return None if self.index is None else faiss_gpu.load(self.index)

    def copy(self) -> Any | None:
        """Read the FAISS index into memory, where it can grow; None as for `index`."""
        return self._read(mapped=False)

    def _read(self, *, mapped: bool) -> Any | None:
        try:
            faiss = import_faiss()
            check_hash(self._view, self.record)
            data = np.frombuffer(self._view, np.uint8)
            faiss.set_deserialization_vector_byte_limit(2 * len(data))
            if mapped:
                index = faiss.read_index(faiss.ZeroCopyIOReader(faiss.swig_ptr(data), len(data)))
                index.referenced_objects = [data]  # stays mapped for as long as the index lives
            else:
                index = faiss.read_index(faiss.PyCallbackIOReader(_Reader(self._view)))
            if (index.ntotal, index.d) != self._shape:
                raise CorruptIndex(self.record.name, f"{self._shape}", f"{(index.ntotal, index.d)}")
            _require_known_kind(index, self.record.name)
            return index
        except (ConfigError, CorruptIndex, RuntimeError) as error:
            warnings.warn(f"Searching without {self.record.name}: {error}", stacklevel=3)
            return None


class _Reader:
    """Hands out mapped bytes one after the other."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def __call__(self, size: int) -> bytes:
        data = bytes(self._view[self._at : self._at + size])
        self._at += len(data)
        return data


def _require_known_kind(index: Any, name: str) -> None:
    """Refuse what our specs never make, such as lists in another file that this one names."""
    faiss = import_faiss()
    index = faiss.downcast_index(index)
    kind = type(index).__name__
    if not _KINDS.fullmatch(kind):
        raise CorruptIndex(name, "a kind of index that a spec can ask for", kind)
    if isinstance(index, faiss.IndexIVF):
        lists = type(faiss.downcast_InvertedLists(index.invlists)).__name__
        if lists not in ("ArrayInvertedLists", "BlockInvertedLists"):
            raise CorruptIndex(name, "inverted lists in the file itself", lists)
    for inner in ("index", "quantizer", "storage"):
        if getattr(index, inner, None) is not None:
            _require_known_kind(getattr(index, inner), name)


def search(
    index: Any, plan: Plan, queries: NDArray[np.float32], selection: Selection | None
) -> NDArray[np.int64]:
    """Find candidates for the best positions of each query.

    Args:
        index: What `FaissFile.index` gave.
        plan: How to search, and how many candidates to fetch.
        queries: float32 (n_queries, dim).
        selection: Which positions take part; None means all.

    Returns:
        int64 (n_queries, candidates), -1 where there are no more or one was not wanted.
    """
    bits = selection.bits if selection and plan.route == "select" else None
    how = parameters(index, plan.spec, plan.n_candidates, bits)
    at: NDArray[np.int64] = index.search(queries, plan.n_candidates, params=how)[1]
    if selection and plan.route == "fetch":
        at[~selection.marks[at]] = -1  # -1 itself looks at the last mark, and stays -1
    return at


def takes_bitmap(index: Any) -> bool:
    """Whether an index can be told which positions take part."""
    faiss = import_faiss()
    if isinstance(index, faiss.IndexPreTransform):
        return takes_bitmap(faiss.downcast_index(index.index))
    return not isinstance(index, faiss.IndexFastScan)


def parameters(
    index: Any, spec: IndexSpec, n_candidates: int, bits: NDArray[np.uint8] | None = None
) -> Any:
    """Return what FAISS is told of a search: how widely, and which positions take part.

    Args:
        index: What `FaissFile.index` gave.
        spec: How widely.
        n_candidates: What it is asked for.
        bits: A bit for each position; None means all.
    """
    faiss = import_faiss()
    if isinstance(index, faiss.IndexPreTransform):
        inner = parameters(faiss.downcast_index(index.index), spec, n_candidates, bits)
        return inner and faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexFastScan):
        return None
    if isinstance(index, faiss.IndexIVF):
        chosen = {"nprobe": min(spec.nprobe, index.nlist)}
        return _made("SearchParametersIVF", bits, **chosen)
    if isinstance(index, faiss.IndexHNSW):
        return _made("SearchParametersHNSW", bits, efSearch=max(spec.ef_search, n_candidates))
    return _made("SearchParameters", bits)


def _made(kind: str, bits: NDArray[np.uint8] | None, **values: int) -> Any:
    if bits is None:
        return _unfiltered(kind, **values)
    faiss = import_faiss()
    return getattr(faiss, kind)(sel=faiss.IDSelectorBitmap(bits), **values)


@lru_cache(maxsize=64)
def _unfiltered(kind: str, **values: int) -> Any:
    """Make search parameters, or give those made before: making them takes 40 us."""
    return getattr(import_faiss(), kind)(**values)
