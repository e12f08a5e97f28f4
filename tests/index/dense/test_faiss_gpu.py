"""All but the kernels: a FAISS whose GPU is the CPU in disguise, and fails in many ways."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sbert_search.base.progress import Progress, set_progress
from sbert_search.index.dense import faiss_gpu, faiss_runtime
from sbert_search.index.dense.query_plan import Plan, Selection
from sbert_search.index.settings import IndexSpec
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, Metric, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import merge_policy
from tests.index.batches import make_batch, some_documents
from tests.index.tuning.conftest import DIM, clustered

N_ROWS = 4_000
SPEC = IndexSpec(factory="IVF16,SQ8", nprobe=16, refine=8)


class FakeIndex:
    """An index "on the device": a copy on the CPU that says which thread touched it."""

    def __init__(self, module: FakeFaiss, index: Any) -> None:
        self._module = module
        self.index = faiss.clone_index(index)

    @property
    def ntotal(self) -> int:
        return 0 if self._module.empty else int(self.index.ntotal)

    def train(self, vectors: NDArray[np.float32]) -> None:
        self._module.touched("train")
        self.index.train(vectors)

    def add(self, vectors: NDArray[np.float32]) -> None:
        self._module.touched("add")
        self.index.add(vectors)

    def search(self, queries: NDArray[np.float32], k: int, params: Any = None) -> Any:
        self._module.touched("search")
        assert k <= faiss_gpu.MOST
        assert params is None or params.nprobe <= faiss_gpu.MOST
        return self.index.search(queries, k, params=params)


class FakeFaiss:
    """faiss-gpu with one device, as far as `gpu` uses it; the rest is faiss itself."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: set[str] = set()
        self.floats: list[bool] = []
        self.n_gpus, self.empty, self.fails_at = 1, False, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(faiss, name)

    def touched(self, what: str) -> None:
        self.calls.append(what)
        self.threads.add(threading.current_thread().name)
        if self.fails_at == what:
            raise RuntimeError(f"no memory for {what}")

    def get_num_gpus(self) -> int:
        return self.n_gpus

    def StandardGpuResources(self) -> Any:  # noqa: N802 (FAISS's name)
        class Resources:
            def setTempMemory(self, n_bytes: int) -> None:  # noqa: N802
                assert n_bytes == faiss_gpu.SCRATCH_BYTES

        self.touched("open")
        return Resources()

    def GpuClonerOptions(self) -> Any:  # noqa: N802
        class Options:
            useFloat16 = useFloat16CoarseQuantizer = False  # noqa: N815
            reserveVecs = 0  # noqa: N815

        return Options()

    def index_cpu_to_gpu(self, resources: Any, number: int, index: Any, options: Any) -> FakeIndex:
        self.touched("upload")
        self.floats.append(options.useFloat16)
        return FakeIndex(self, index)

    def index_gpu_to_cpu(self, there: FakeIndex) -> Any:
        self.touched("bring back")
        return there.index


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFaiss]:
    module = FakeFaiss()
    monkeypatch.setattr(faiss_gpu, "import_faiss", lambda: module)
    monkeypatch.setattr(merge_policy, "MIN_ANN_ROWS", 500)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (8 << 30, 8 << 30))
    scores = faiss_gpu.exact_candidates
    monkeypatch.setattr(
        faiss_gpu, "exact_candidates", lambda *a, **o: scores(*a, **o, device="cpu")
    )
    faiss_gpu.find_gpu.cache_clear()
    yield module
    faiss_gpu.find_gpu.cache_clear()


def built(path: Path, metric: Metric = "cosine", spec: IndexSpec = SPEC) -> IndexStore:
    store = IndexStore.create(path, Manifest.new(VectorSettings(dim=DIM, metric=metric, spec=spec)))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(N_ROWS), clustered(N_ROWS, seed=0)))
        writer.finish_build()
    return store


def recall(snapshot: Snapshot, k: int = 10, **options: Any) -> float:
    queries = clustered(50, seed=3)
    rows = snapshot.search(queries, k, **options)[1]
    exact = snapshot.search(queries, k, exact=True, **options)[1]
    return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(rows, exact, strict=True)]))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_builds_and_searches_go_over_the_device_in_one_thread(
    tmp_path: Path, fake: FakeFaiss, metric: Metric
) -> None:
    store = built(tmp_path / "i", metric)
    assert {"train", "add", "bring back"} <= set(fake.calls)
    fake.calls.clear()
    assert recall(store.snapshot) > 0.99
    assert fake.calls.count("upload") == 1
    assert "search" in fake.calls
    assert fake.floats[-1] is True  # searched as float16, built as float32
    assert not any(fake.floats[:-1])
    assert len(fake.threads) == 1
    assert fake.threads.pop().startswith("gpu")


def test_the_file_is_the_one_that_the_cpu_makes(tmp_path: Path, fake: FakeFaiss) -> None:
    there = built(tmp_path / "gpu")
    fake.n_gpus = 0
    faiss_gpu.find_gpu.cache_clear()
    here = built(tmp_path / "cpu")
    sizes = [s.snapshot.manifest.segments[0].vectors["v1"].ann for s in (there, here)]
    assert sizes[0]
    assert sizes[1]
    assert sizes[0].size_bytes == sizes[1].size_bytes
    assert abs(recall(there.snapshot) - recall(here.snapshot)) < 0.005


def test_limits_and_filters_go_to_the_exact_path(
    tmp_path: Path, fake: FakeFaiss, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = built(tmp_path / "i")
    asked: list[int] = []
    exact = faiss_gpu.exact_candidates

    def counted(*arguments: Any, **options: Any) -> NDArray[np.int64]:
        asked.append(arguments[2])
        return exact(*arguments, **options)

    monkeypatch.setattr(faiss_gpu, "exact_candidates", counted)
    assert recall(store.snapshot, k=300) == 1.0  # 8 x 300 candidates are beyond FAISS's limit
    assert asked == [2400]
    assert not faiss_gpu.supports(Plan("fetch", IndexSpec(factory="IVF4096,SQ8", nprobe=2049), 10))
    assert not faiss_gpu.supports(Plan("select", SPEC, 10))
    assert faiss_gpu.supports(Plan("fetch", SPEC, 2048))
    with store.writer() as writer:
        writer.delete([f"d{i}" for i in range(100)])
    assert (store.snapshot.search(clustered(50, seed=3), 10)[1] >= 100).all()


@pytest.mark.parametrize("euclidean", [False, True])
def test_the_exact_path_is_exact(euclidean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_gpu, "CHUNK_ROWS", 300)
    vectors, queries = clustered(1_000, seed=1), clustered(20, seed=2)
    marks = np.arange(1_000) % 3 == 0
    for selection in (None, Selection(marks)):
        found = faiss_gpu.exact_candidates(
            queries, vectors, 10, selection, euclidean=euclidean, device="cpu"
        )
        distance = np.linalg.norm(queries[:, None] - vectors[None], axis=2)
        scores = -distance if euclidean else queries @ vectors.T
        if selection:
            scores[:, ~marks] = -np.inf
        assert (found == np.argsort(-scores, axis=1)[:, :10]).all()


def fall_back(fake: FakeFaiss, change: Callable[[FakeFaiss], object]) -> None:
    change(fake)
    faiss_gpu.find_gpu.cache_clear()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fake: setattr(fake, "n_gpus", 0), ""),
        (lambda fake: setattr(fake, "empty", True), "wrong answers on the GPU, so the CPU is used"),
        (lambda fake: setattr(fake, "fails_at", "open"), "FAISS cannot use the GPU"),
        (lambda fake: setattr(fake, "fails_at", "train"), "Training on the CPU, since the GPU"),
        (lambda fake: setattr(fake, "fails_at", "add"), "Building on the CPU, since the GPU"),
    ],
)
def test_what_the_device_does_not_do_the_cpu_does_and_says_so(
    tmp_path: Path,
    fake: FakeFaiss,
    change: Callable[[FakeFaiss], object],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fall_back(fake, change)
    store = built(tmp_path / "i")
    assert store.snapshot.manifest.segments[0].vectors["v1"].ann
    assert recall(store.snapshot) > 0.99
    assert said in capsys.readouterr().err


def test_vectors_that_the_device_loses_are_not_counted_twice(
    tmp_path: Path, fake: FakeFaiss
) -> None:
    fake.fails_at = "bring back"
    seen: list[Progress] = []
    before = set_progress(seen.append)
    try:
        built(tmp_path / "i")
    finally:
        set_progress(before)
    building = [step for step in seen if step.name == "Building the search index"]
    assert building[-1].done == N_ROWS
    assert all(step.done <= N_ROWS for step in building)


@pytest.mark.parametrize("error", [AssertionError, RuntimeError])
def test_a_device_that_torch_cannot_use_is_not_used(
    tmp_path: Path,
    fake: FakeFaiss,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: type[Exception],
) -> None:
    def refuse(number: int) -> None:
        raise error("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    assert recall(built(tmp_path / "i").snapshot) > 0.99
    assert "so the CPU is used: Torch not compiled with CUDA" in capsys.readouterr().err


@pytest.mark.parametrize("k", [10, 300])
def test_a_search_that_fails_on_the_device_is_repeated_on_the_cpu(
    tmp_path: Path,
    fake: FakeFaiss,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    k: int,
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise RuntimeError("no memory for scores")

    store = built(tmp_path / "i")
    fake.fails_at = "search"
    monkeypatch.setattr(faiss_gpu, "exact_candidates", full)
    assert recall(store.snapshot, k=k) > 0.9
    assert "repeated on the CPU: no memory for s" in capsys.readouterr().err


def test_an_upload_that_comes_back_empty_is_not_searched(
    tmp_path: Path, fake: FakeFaiss, capsys: pytest.CaptureFixture[str]
) -> None:
    store = built(tmp_path / "i")
    fake.empty = True
    assert recall(store.snapshot) > 0.99
    assert "Searching on the CPU: the GPU took 0 of 4,000 vectors" in capsys.readouterr().err


def test_the_device_is_not_asked_for_what_it_cannot_hold_or_know(
    tmp_path: Path,
    fake: FakeFaiss,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert faiss_gpu.gpu_for(faiss.index_factory(8, "HNSW16"), 10) is None
    assert faiss_gpu.gpu_for(faiss.index_factory(8, "IVF16,PQ8x4fs"), 10) is None
    lists = faiss.index_factory(8, "IVF16,SQ8")
    assert faiss_gpu.gpu_for(lists, 10) is not None
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (1 << 20, 8 << 30))
    assert faiss_gpu.gpu_for(lists, 10) is None
    note = "more than the free memory of the GPU allows; the CPU is used"
    assert note in capsys.readouterr().err


def test_without_a_gpu_build_of_faiss_nothing_is_tried() -> None:
    faiss_gpu.find_gpu.cache_clear()
    if not hasattr(faiss_runtime.import_faiss(), "StandardGpuResources"):
        assert faiss_gpu.find_gpu() is None
