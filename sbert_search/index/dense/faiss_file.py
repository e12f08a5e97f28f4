"""Approximate search of a segment by a FAISS index, whose file can be rebuilt from the vectors.

FAISS neither writes nor opens the file itself: its writer can lose data on a full disk and report
success, and its reader parses damaged bytes. `base` writes the bytes, and their hash is checked
before FAISS parses them. A position is the index of a vector in its segment.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.cache import typed_lru_cache
from sbert_search.base.folders import Folder
from sbert_search.errors import ConfigError, CorruptIndex
from sbert_search.index.dense.faiss_runtime import (
    FaissIndex,
    FaissParameters,
    import_faiss,
    limited_to_file,
)
from sbert_search.index.dense.query_plan import Plan, Selection
from sbert_search.index.settings import IndexSpec
from sbert_search.index.storage.manifest import FileRecord
from sbert_search.index.storage.segments import check_hash, open_checked

if TYPE_CHECKING:
    from sbert_search.index.dense.faiss_gpu import GpuIndex

_KINDS = re.compile(r"Index(Flat(IP|L2)?|(HNSW|IVF|PQ|ScalarQuantizer|PreTransform|RaBitQ)\w*)")


class FaissFile:
    """A FAISS index in a file; ``shape`` is the number of vectors and the dimensions it must have.

    The constructor maps the file and checks its size. The hash is checked and the index is parsed
    at the first use. A missing file raises FileNotFoundError, and one of another size CorruptIndex.
    """

    def __init__(self, folder: Folder, record: FileRecord, shape: tuple[int, int]) -> None:
        self.record, self._shape = record, shape
        self._view = open_checked(folder, record, hash_up_to=0)

    @cached_property
    def index(self) -> FaissIndex | None:
        """The FAISS index; None, with a warning, if the file is damaged or FAISS is missing.

        Its lists, codes and links stay in the mapped file (docs/decisions.md: FAISS files are
        mapped).
        """
        return self.read(mapped=True)

    def load(self) -> None:
        """Check and parse the file now, not at the first search; warn as `index` does."""
        _ = self.index

    @cached_property
    def on_gpu(self) -> GpuIndex | None:
        """A copy of the index on the GPU; None if there is no index or no GPU can search it."""
        from sbert_search.index.dense import faiss_gpu

        return None if self.index is None else faiss_gpu.load(self.index)

    @cached_property
    def centroids(self) -> bytes:
        """A hash of the centroids of inverted lists whose entries can be copied; else empty.

        The segments of an index have the same, since they are filled from one training. Entries of
        fast-scan codes cannot be copied one by one.
        """
        faiss, index = import_faiss(), self.index
        if not isinstance(index, faiss.IndexIVF):
            return b""
        quantizer = faiss.downcast_index(index.quantizer)
        lists = faiss.downcast_InvertedLists(index.invlists)
        if not (isinstance(quantizer, faiss.IndexFlat) and type(lists) is faiss.ArrayInvertedLists):
            return b""
        data = faiss.rev_swig_ptr(quantizer.get_xb(), quantizer.ntotal * quantizer.d)
        return hashlib.sha256(data).digest()

    @cached_property
    def entries(self) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
        """The length of each inverted list, and the position of each entry, list by list.

        None if `JoinedLists` cannot take the file: codes must not depend on the centroids' numbers.
        """
        faiss, index = import_faiss(), self.index
        similarity = index is not None and index.metric_type == faiss.METRIC_INNER_PRODUCT
        kinds = (faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer)[: 1 + similarity]
        if not (self.centroids and isinstance(index, kinds) and self.on_gpu is None):
            return None
        found = faiss.DirectMap()  # for each position: number of the list << 32 | place in it
        found.set_type(faiss.DirectMap.Array, index.invlists, index.ntotal)
        lists, places = np.divmod(faiss.vector_to_array(found.array), 1 << 32)
        sizes = np.bincount(lists, minlength=index.nlist)
        positions = np.empty(index.ntotal, np.int32)
        positions[(sizes.cumsum() - sizes)[lists] + places] = np.arange(index.ntotal)
        return sizes, positions

    def read(self, *, mapped: bool) -> FaissIndex | None:
        """Read the index again, ``mapped`` or into memory to be changed; warn as `index` does."""
        try:
            faiss = import_faiss()
            check_hash(self._view, self.record)
            data = np.frombuffer(self._view, np.uint8)
            # Tables of PQ distances are not in the file, and may be far larger than it.
            flags = faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
            with limited_to_file(len(data)):
                if mapped:
                    reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(data), len(data))
                    index = faiss.read_index(reader, flags)
                    index.referenced_objects = [data]  # keeps the file mapped while the index lives
                else:
                    reader = faiss.PyCallbackIOReader(_Reader(self._view))
                    index = faiss.read_index(reader, flags)
            if (index.ntotal, index.d) != self._shape:
                raise CorruptIndex(self.record.name, f"{self._shape}", f"{(index.ntotal, index.d)}")
            _require_known_kind(index, self.record.name)
            return index
        except (ConfigError, CorruptIndex, RuntimeError) as error:
            warnings.warn(f"Searching without {self.record.name}: {error}", stacklevel=3)
            return None


class JoinedLists:
    """Inverted lists of files with the same centroids and with `entries`: one call searches all.

    Positions in the second file follow those in the first, and so on.
    """

    def __init__(self, anns: Sequence[FaissFile]) -> None:
        faiss, self._anns = import_faiss(), anns
        sizes, positions = zip(*(ann.entries or () for ann in anns), strict=True)
        firsts = np.cumsum([0, *map(len, positions)], dtype=np.int32)
        self._positions = np.concatenate([p + n for p, n in zip(positions, firsts, strict=False)])
        self._starts = np.concatenate(sizes).cumsum() - np.concatenate(sizes)
        lists = faiss.InvertedListsPtrVector()
        for ann in anns:
            lists.push_back(cast(FaissIndex, ann.index).invlists)
        self._lists = faiss.VStackInvertedLists(lists.size(), lists.data())
        smallest = min(anns, key=lambda ann: ann.record.size_bytes)
        self._index = cast(FaissIndex, smallest.read(mapped=True))
        self.nlist: int = self._index.nlist
        self._numbers = np.arange(len(anns))[:, None] * self.nlist
        self._index.nlist *= len(anns)
        self._index.replace_invlists(self._lists, False)
        self._index.parallel_mode = 3  # all threads search; in mode 0 only a whole search uses them
        self._pointer = faiss.swig_ptr

    def search(
        self, queries: NDArray[np.float32], n_candidates: int, *, params: FaissParameters
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Search as an index of FAISS does."""
        n, n_files, pointer = len(queries), len(self._anns), self._pointer
        distances, numbers = self._index.quantizer.search(queries, params.nprobe)
        distances = np.concatenate([distances] * n_files, axis=1)
        numbers = (numbers[:, None] + self._numbers).reshape(n, -1)
        scores = np.empty((n, n_candidates), np.float32)
        found = np.empty((n, n_candidates), np.int64)  # number of the list << 32 | place in it; -1
        params = _unfiltered("SearchParametersIVF", nprobe=params.nprobe * n_files)
        lists, results = map(pointer, (numbers, distances)), map(pointer, (scores, found))
        arguments = n, pointer(queries), n_candidates, *lists, *results, True, params
        self._index.search_preassigned_c(*arguments)  # without "_c" it takes no parameters
        places = self._starts.take(found >> 32, mode="clip") + (found & 0xFFFFFFFF)
        at = self._positions.take(places, mode="clip").astype(np.int64)
        at[found < 0] = -1
        return scores, at


class _Reader:
    """Returns the next bytes of a mapped file at each call, as FAISS's callback reader expects."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def __call__(self, size: int) -> bytes:
        data = bytes(self._view[self._at : self._at + size])
        self._at += len(data)
        return data


def _require_known_kind(index: FaissIndex, name: str) -> None:
    """Refuse a kind that no `IndexSpec` describes, such as one with its lists in another file."""
    faiss = import_faiss()
    index = faiss.downcast_index(index)
    kind = type(index).__name__
    if not _KINDS.fullmatch(kind):
        raise CorruptIndex(name, "a kind of index that a spec can name", kind)
    if isinstance(index, faiss.IndexIVF):
        lists = type(faiss.downcast_InvertedLists(index.invlists)).__name__
        if lists not in ("ArrayInvertedLists", "BlockInvertedLists"):
            raise CorruptIndex(name, "inverted lists in the file itself", lists)
    for inner in ("index", "quantizer", "storage"):
        if getattr(index, inner, None) is not None:
            _require_known_kind(getattr(index, inner), name)


def search(
    index: FaissIndex, plan: Plan, queries: NDArray[np.float32], selection: Selection | None
) -> NDArray[np.int64]:
    """Find the positions that FAISS ranks best for each query, int64 (n_queries, n_candidates).

    -1 where FAISS found no more candidates, and -2 where one is not selected.
    """
    bits = selection.bits if selection and plan.route == "select" else None
    params = parameters(index, plan.spec, plan.n_candidates, bits)
    at: NDArray[np.int64] = index.search(queries, plan.n_candidates, params=params)[1]
    if selection and plan.route == "fetch":
        drop_unselected(at, selection)
    return at


def drop_unselected(at: NDArray[np.int64], selection: Selection) -> None:
    """Set the positions that are not selected to -2; those of -1 stay."""
    at[~selection.marks[at] & (at >= 0)] = -2


def takes_bitmap(index: FaissIndex) -> bool:
    """Whether FAISS can limit a search of this kind of index to the positions in a bitmap."""
    faiss = import_faiss()
    if isinstance(index, faiss.IndexPreTransform):
        return takes_bitmap(faiss.downcast_index(index.index))
    return not isinstance(index, faiss.IndexFastScan | faiss.IndexPQ | JoinedLists)


def parameters(
    index: FaissIndex, spec: IndexSpec, n_candidates: int, bits: NDArray[np.uint8] | None = None
) -> FaissParameters:
    """Return FAISS's search parameters for an index; None if its kind accepts no parameters.

    ``bits`` has one bit for each position, set if it may be returned; None means all.
    """
    faiss = import_faiss()
    if isinstance(index, faiss.IndexPreTransform):
        inner = parameters(faiss.downcast_index(index.index), spec, n_candidates, bits)
        return inner and faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexFastScan | faiss.IndexPQ):  # these refuse any parameters
        return None
    if isinstance(index, faiss.IndexIVF | JoinedLists):
        return _make("SearchParametersIVF", bits, nprobe=min(spec.nprobe, index.nlist))
    if isinstance(index, faiss.IndexHNSW):
        return _make("SearchParametersHNSW", bits, efSearch=max(spec.ef_search, n_candidates))
    return _make("SearchParameters", bits)


def _make(kind: str, bits: NDArray[np.uint8] | None, **values: int) -> FaissParameters:
    if bits is None:
        return _unfiltered(kind, **values)
    faiss = import_faiss()
    return getattr(faiss, kind)(sel=faiss.IDSelectorBitmap(bits), **values)


@typed_lru_cache(maxsize=64)
def _unfiltered(kind: str, **values: int) -> FaissParameters:
    """Create search parameters without a bitmap once and reuse them: creation takes 40 us."""
    return getattr(import_faiss(), kind)(**values)
