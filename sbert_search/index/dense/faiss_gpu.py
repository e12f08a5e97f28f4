"""Build and search FAISS indexes on a GPU, if `faiss-gpu` is installed and a GPU answers correctly.

A build trains the index on the device (the GPU) and fills it there from pinned memory. The filled
index is copied back to the CPU and written to a file. A search uses a float16 copy of the index on
the device. Only one thread calls FAISS on the device, since GPU indexes are not safe even for
concurrent readers (facebookresearch/faiss issues 367 and 1014). Work that does not fit on the
device or fails there is done on the CPU, and a note or a warning tells the user.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Advance, note, warn
from sbert_search.index.dense.faiss_file import drop_unselected
from sbert_search.index.dense.faiss_runtime import FaissIndex, import_faiss
from sbert_search.index.dense.query_plan import Plan, Selection
from sbert_search.index.norms import Vectors

MOST = 2048  # largest n_candidates and largest nprobe that FAISS accepts on a GPU
CHUNK_ROWS = 65_536  # vectors sent to the device at a time
SCRATCH_BYTES = 512 << 20  # temporary memory that FAISS reserves on the device
SHARE = 0.8  # share of a device's free memory that an index and the scratch memory may take

_KINDS = {"IndexIVFFlat", "IndexIVFPQ", "IndexIVFScalarQuantizer"}

T = TypeVar("T")


class Gpu:
    """One GPU, with the only thread that calls FAISS on it."""

    def __init__(self, faiss: Any, number: int = 0) -> None:
        self.faiss, self.number = faiss, number
        self._owner = ThreadPoolExecutor(1, "gpu")
        self.resources = self.run(self._open)

    def run(self, work: Callable[[], T]) -> T:
        """Run a function in the thread that calls FAISS, and wait for its result."""
        return self._owner.submit(work).result()

    def has_room(self, n_bytes: int) -> bool:
        """Whether ``n_bytes`` and the scratch memory fit into `SHARE` of the free memory."""
        import torch

        free, _ = torch.cuda.mem_get_info(self.number)
        return n_bytes + SCRATCH_BYTES <= SHARE * free

    def upload(self, index: FaissIndex, n_rows: int, *, float16: bool) -> FaissIndex:
        """Copy a CPU index to the device, with room for ``n_rows`` vectors; call inside `run`."""
        options = self.faiss.GpuClonerOptions()
        options.useFloat16 = options.useFloat16CoarseQuantizer = float16
        options.reserveVecs = n_rows
        return self.faiss.index_cpu_to_gpu(self.resources, self.number, index, options)

    def _open(self) -> FaissIndex:
        resources = self.faiss.StandardGpuResources()
        resources.setTempMemory(SCRATCH_BYTES)
        return resources


@cache
def find_gpu() -> Gpu | None:
    """Return the first GPU if FAISS gives right answers on it and torch can use it, else None.

    The answers are tested, since FAISS may make an empty copy of an index on the GPU and raise no
    error.
    """
    faiss = import_faiss()
    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() < 1:
        return None
    try:
        gpu = Gpu(faiss)
        right = gpu.run(lambda: _answers_correctly(gpu))
        gpu.has_room(0)  # only to raise an error if torch has no CUDA
    except (RuntimeError, AssertionError) as error:
        warn(f"FAISS cannot use the GPU, so the CPU is used: {error}")
        return None
    if not right:
        warn("FAISS gives wrong answers on the GPU, so the CPU is used.")
    return gpu if right else None


def gpu_for(index: FaissIndex, n_rows: int) -> Gpu | None:
    """Return the GPU if FAISS supports this kind of index on it and ``n_rows`` fit, else None."""
    gpu = find_gpu()
    if gpu is None:
        return None
    inner = gpu.faiss.downcast_index(index)
    if type(inner).__name__ not in _KINDS:
        return None
    needed = n_rows * (inner.code_size + 8) + 4 * inner.nlist * inner.d
    if not gpu.has_room(needed):
        note(
            f"{n_rows:,} vectors take {needed / 2**20:,.0f} MiB, more than the free memory of the "
            "GPU allows; the CPU is used."
        )
        return None
    return gpu


def train(gpu: Gpu, index: FaissIndex, vectors: NDArray[np.float32]) -> FaissIndex | None:
    """Train an index on the device and copy it back; None, with a warning, if the device fails."""

    def work() -> FaissIndex:
        on_gpu = gpu.upload(index, 0, float16=False)
        on_gpu.train(vectors)
        return gpu.faiss.index_gpu_to_cpu(on_gpu)

    return _run_or_note(gpu, work, "Training")


def fill(gpu: Gpu, empty: FaissIndex, vectors: Vectors, advance: Advance) -> FaissIndex | None:
    """Fill a copy of an empty index on the device; return it on the CPU, None if the device fails.

    After a failure, ``advance`` gets a negative number, since all vectors must be added again.
    """
    n_added = 0

    def work() -> FaissIndex:
        nonlocal n_added
        on_gpu = gpu.upload(empty, len(vectors), float16=False)
        chunk = _pinned(min(CHUNK_ROWS, len(vectors)), vectors.shape[1])
        for start in range(0, len(vectors), CHUNK_ROWS):
            block = vectors[start : start + CHUNK_ROWS]
            chunk[: len(block)] = block
            on_gpu.add(chunk[: len(block)])
            n_added += len(block)
            advance(len(block))
        index = gpu.faiss.index_gpu_to_cpu(on_gpu)
        if index.ntotal != len(vectors):
            raise RuntimeError(f"the GPU holds {index.ntotal:,} of {len(vectors):,} vectors")
        return index

    filled = _run_or_note(gpu, work, "Building")
    if filled is None:
        advance(-n_added)
    return filled


class GpuIndex:
    """A float16 copy of a FAISS index on a GPU; RuntimeError if the GPU fails or loses vectors."""

    def __init__(self, gpu: Gpu, index: FaissIndex) -> None:
        self._gpu = gpu
        self._on_gpu = gpu.run(lambda: gpu.upload(index, index.ntotal, float16=True))
        if self._on_gpu.ntotal != index.ntotal:
            raise RuntimeError(f"the GPU took {self._on_gpu.ntotal:,} of {index.ntotal:,} vectors")

    def search(
        self, plan: Plan, queries: NDArray[np.float32], selection: Selection | None
    ) -> NDArray[np.int64]:
        """Find candidates as `faiss_file.search` does, by a plan of the route ``fetch``."""
        faiss = self._gpu.faiss

        def work() -> NDArray[np.int64]:
            parameters = faiss.SearchParametersIVF(nprobe=plan.spec.nprobe)
            at: NDArray[np.int64] = self._on_gpu.search(
                queries, plan.n_candidates, params=parameters
            )[1]
            return at

        at = self._gpu.run(work)
        if selection is not None:
            drop_unselected(at, selection)
        return at


def supports(plan: Plan) -> bool:
    """Whether FAISS on a GPU can follow a plan: no bitmap, at most `MOST` candidates and lists."""
    return plan.route == "fetch" and max(plan.n_candidates, plan.spec.nprobe) <= MOST


def load(index: FaissIndex) -> GpuIndex | None:
    """Copy an index to a GPU; None if no GPU can hold it or, with a warning, if the copy fails."""
    try:
        gpu = gpu_for(index, index.ntotal)
        return GpuIndex(gpu, index) if gpu else None
    except RuntimeError as error:
        warn(f"Searching on the CPU: {error}")
        return None


def exact_candidates(
    queries: NDArray[np.float32],
    vectors: Vectors,
    n_candidates: int,
    selection: Selection | None,
    *,
    euclidean: bool,
    device: str = "cuda",
) -> NDArray[np.int64]:
    """Find the best positions by scoring all selected vectors with torch, int64 (n_queries, n).

    It serves the plans that FAISS does not support on a GPU (`supports`). The best come first; n is
    below ``n_candidates`` if fewer vectors are selected.
    """
    import torch

    gpu_queries = torch.from_numpy(queries).to(device)
    positions = None if selection is None else np.flatnonzero(selection.marks)
    n_rows = len(vectors) if positions is None else len(positions)
    scores = torch.empty((len(queries), 0), device=device)
    at = torch.empty((len(queries), 0), dtype=torch.int64, device=device)
    for start in range(0, n_rows, CHUNK_ROWS):
        here = slice(start, min(start + CHUNK_ROWS, n_rows))
        block = vectors[here] if positions is None else vectors[positions[here]]
        chunk = _pinned(len(block), vectors.shape[1])
        chunk[:] = block
        gpu_vectors = torch.from_numpy(chunk).to(device)
        new = gpu_queries @ gpu_vectors.T
        if euclidean:
            new = 2 * new - (gpu_vectors * gpu_vectors).sum(dim=1)
        scores = torch.cat([scores, new], dim=1)
        new_at = torch.arange(here.start, here.stop, device=device).expand(len(queries), -1)
        at = torch.cat([at, new_at], dim=1)
        scores, best = scores.topk(min(n_candidates, scores.shape[1]), dim=1)
        at = at.gather(1, best)
    best_at: NDArray[np.int64] = at.cpu().numpy()
    return best_at if positions is None else positions[best_at]


def _run_or_note(gpu: Gpu, work: Callable[[], FaissIndex], what: str) -> FaissIndex | None:
    try:
        return gpu.run(work)
    except RuntimeError as error:
        warn(f"{what} on the CPU, since the GPU failed: {error}")
        return None


def _answers_correctly(gpu: Gpu) -> bool:
    vectors = np.eye(4, dtype=np.float32)
    index = gpu.faiss.IndexFlatL2(4)
    index.add(vectors)
    on_gpu = gpu.upload(index, 4, float16=False)
    nearest = on_gpu.search(vectors, 1)[1]
    return bool(on_gpu.ntotal == 4 and (nearest[:, 0] == np.arange(4)).all())


def _pinned(n_rows: int, dim: int) -> NDArray[np.float32]:
    """Allocate float32 vectors (n_rows, dim), page-locked if torch has a GPU, to save it a copy."""
    import torch

    pinned: NDArray[np.float32] = torch.empty(
        (n_rows, dim), pin_memory=torch.cuda.is_available()
    ).numpy()
    return pinned
