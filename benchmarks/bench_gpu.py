"""Search on a GPU against the CPU: equal answers, time to fill an index, speed.

    python benchmarks/bench_gpu.py [--quick] [--out F.json]

The index has 1,000,000 clustered vectors of 384 dimensions (--quick: 100,000). Exact search with
torch on the GPU should return the rows that the CPU returns (overlap of at least 0.999). An IVF
index that FAISS fills and searches on the GPU should have the CPU's recall within 0.005. The script
needs faiss-gpu and a GPU.
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
from sbert_search.index.settings import IndexSpec
from sbert_search.index.storage.manifest import VectorSettings

N_ROWS, QUICK_ROWS, N_QUERIES, K = 1_000_000, 100_000, 1_000, 10
FACTORY, QUICK_FACTORY = "IVF2048,SQ8", "IVF1024,SQ8"

T = TypeVar("T")


def main() -> None:
    """Measure, print the figures and write the result file."""
    options = arguments(__doc__.partition("\n")[0]).parse_args()
    device = faiss_gpu.find_gpu()
    if device is None:
        raise SystemExit("FAISS finds no GPU, so nothing is measured.")
    results = Results(options)
    count = QUICK_ROWS if options.quick else N_ROWS
    clusters = Clusters.of(options.seed, count)
    vectors = np.concatenate(list(clusters.blocks(count)))
    queries = clusters.queries(N_QUERIES)

    def exact_on_cpu() -> TopK:
        top = TopK.empty(len(queries), K)
        scan(queries, vectors, top, np.arange(count), metric="cosine", max_norm=1.0)
        return top

    exact_on_gpu = partial(faiss_gpu.exact_candidates, queries, vectors, K, None, euclidean=False)
    truth = exact_on_cpu().rows
    results.add("flat_overlap", Figure(recall(exact_on_gpu(), truth), "share"))
    speed = partial(rate, N_QUERIES, exact_on_gpu), partial(rate, N_QUERIES, exact_on_cpu)
    results.add("flat_speed", compare(*speed, unit="q/s", repeats=repeats_of(options)))

    spec = IndexSpec(factory=QUICK_FACTORY if options.quick else FACTORY, nprobe=16)
    settings = VectorSettings(dim=DIM, spec=spec)
    empty = faiss_build.train([vectors], settings)
    assert empty is not None
    gpu_made, gpu_s = timed(partial(faiss_gpu.fill, device, empty, vectors, lambda n: None))
    cpu_made, cpu_s = timed(partial(faiss_build.fill, empty, vectors))
    assert gpu_made is not None
    results.add("ivf_build", Figure(gpu_s, "s", cpu_s, gpu_s / cpu_s))
    query_plan = plan(spec, count, count, n_live=count, k=K, n_queries=N_QUERIES, takes_bitmap=True)
    gpu = faiss_gpu.GpuIndex(device, gpu_made)
    gpu_search = partial(gpu.search, query_plan, queries, None)
    cpu_search = partial(faiss_file.search, cpu_made, query_plan, queries, None)
    found = [recall_of_best(rows, queries, vectors, truth) for rows in (gpu_search(), cpu_search())]
    results.add("ivf_recall", Figure(found[0], "recall", found[1], found[0] / found[1]))
    speed = partial(rate, N_QUERIES, gpu_search), partial(rate, N_QUERIES, cpu_search)
    results.add("ivf_speed", compare(*speed, unit="q/s", repeats=repeats_of(options)))
    results.add("ivf_bytes", Figure(spec.predicted_bytes(count, DIM) / 2**20, "MiB"))


def recall_of_best(candidates: Rows, queries: Floats, vectors: Floats, truth: Rows) -> float:
    """Rank candidates, (queries, n), by the stored vectors; return the recall of the first `K`."""
    scores = np.einsum("qd,qcd->qc", queries, vectors[candidates])
    scores[candidates < 0] = -np.inf
    best = np.take_along_axis(candidates, np.argsort(-scores, axis=1)[:, :K], axis=1)
    return recall(best, truth)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Call a function and return its result and its seconds."""
    start = time.perf_counter()
    made = work()
    return made, time.perf_counter() - start


if __name__ == "__main__":
    main()
