"""FAISS on a GPU beside the CPU: the same answers, build time, speed, memory.

    python benchmarks/bench_gpu.py [--quick] [--out F.json]

1,000,000 clustered vectors of 384 dimensions (--quick: 100,000). Exact search with torch on the
device must return the rows that the CPU returns (overlap of at least 0.999). An IVF index built and
searched on the device must have the CPU's recall within 0.005. Needs faiss-gpu and a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from common import Figure, Results, arguments, compare, rate, repeats_of
from peers import Floats, Rows, recall
from vectors import DIM, Clusters

from sbert_search.index.dense import faiss_build, faiss_file, faiss_gpu
from sbert_search.index.dense.exact import TopK, scan
from sbert_search.index.dense.query_plan import plan
from sbert_search.index.spec import IndexSpec
from sbert_search.index.storage.manifest import StoreSettings

N_ROWS, QUICK_ROWS, N_QUERIES, K = 1_000_000, 100_000, 1_000, 10

T = TypeVar("T")


def main() -> None:
    options = arguments(__doc__.partition("\n")[0]).parse_args()
    device = faiss_gpu.find_gpu()
    if device is None:
        raise SystemExit("There is no GPU that FAISS answers on: nothing is measured.")
    results = Results(options)
    count = QUICK_ROWS if options.quick else N_ROWS
    clusters = Clusters.of(options.seed, count)
    vectors = np.concatenate(list(clusters.blocks(count)))
    queries = clusters.queries(N_QUERIES)

    def on_cpu() -> TopK:
        top = TopK.empty(len(queries), K)
        scan(queries, vectors, top, np.arange(count), metric="cosine", max_norm=1.0)
        return top

    exact = partial(faiss_gpu.exact_candidates, queries, vectors, K, None, euclidean=False)
    truth = on_cpu().rows
    results.add("flat_overlap", Figure(recall(exact(), truth), "share"))
    speed = partial(rate, N_QUERIES, exact), partial(rate, N_QUERIES, on_cpu)
    results.add("flat_speed", compare(*speed, unit="q/s", repeats=repeats_of(options)))

    spec = IndexSpec(factory="IVF1024,SQ8" if options.quick else "IVF2048,SQ8", nprobe=16)
    settings = StoreSettings(dim=DIM, spec=spec)
    empty = faiss_build.train([vectors], settings)
    assert empty is not None
    there, there_s = timed(partial(faiss_gpu.fill, device, empty, vectors, lambda n: None))
    here, here_s = timed(partial(faiss_build.fill, empty, vectors))
    assert there is not None
    results.add("ivf_build", Figure(there_s, "s", here_s, there_s / here_s))
    how = plan(spec, count, count, k=K, n_queries=N_QUERIES, takes_bitmap=True)
    copy = faiss_gpu.GpuIndex(device, there)
    ours = partial(copy.search, how, queries, None)
    theirs = partial(faiss_file.search, here, how, queries, None)
    found = [top_of(at, queries, vectors, truth) for at in (ours(), theirs())]
    results.add("ivf_recall", Figure(found[0], "recall", found[1], found[0] / found[1]))
    speed = partial(rate, N_QUERIES, ours), partial(rate, N_QUERIES, theirs)
    results.add("ivf_speed", compare(*speed, unit="q/s", repeats=repeats_of(options)))
    results.add("ivf_bytes", Figure(spec.predicted_bytes(count, DIM) / 2**20, "MiB"))
    results.write()


def top_of(at: Rows, queries: Floats, vectors: Floats, truth: Rows) -> float:
    """Score candidates by the stored vectors and compare the best with the true ones."""
    scores = np.einsum("qd,qcd->qc", queries, vectors[at])
    scores[at < 0] = -np.inf
    best = np.take_along_axis(at, np.argsort(-scores, axis=1)[:, :K], axis=1)
    return recall(best, truth)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    made = work()
    return made, time.perf_counter() - start


if __name__ == "__main__":
    main()
