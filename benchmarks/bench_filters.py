"""Filtered search at several selectivities, against dropping hits after an unfiltered search.

    python benchmarks/bench_filters.py [--quick] [--work FOLDER] [--out F.json]

One index of 1,000,000 clustered vectors of 384 dimensions (--quick: 60,000) is searched in three
ways: by an exact scan, by HNSW and by IVF. The search parameters of HNSW and IVF are first raised
until the recall without a filter is at least 0.97.

Four filters match different shares of the vectors. The script asks 100 queries with each filter. It
measures the recall@10 against an exact scan of the matching vectors, the median latency, and the
number of queries with fewer than 10 hits. The peer is post-filtering: it fetches 100 hits without
the filter and drops those that do not match. Its latency and its number of queries with fewer than
10 hits are measured too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from common import Figure, Results, arguments
from numpy.typing import NDArray
from vectors import Clusters, write_index

from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.settings import IndexSpec
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.store import IndexStore

N_ROWS, QUICK_ROWS = 1_000_000, 60_000
SPECS = {
    "exact": IndexSpec(),
    "hnsw": IndexSpec(factory="HNSW32,SQbf16", ef_search=32),
    "ivf": IndexSpec(factory="IVF2048,SQ8", nprobe=4),
}
QUICK_SPECS = {
    "exact": IndexSpec(),
    "hnsw": IndexSpec(factory="HNSW16,SQ8", ef_search=32, ef_construction=40),
    "ivf": IndexSpec(factory="IVF256,SQ8", nprobe=4),
}
# Maps the share of the vectors that match to the number N of the filter `part < N`. The index
# column `part` holds the numbers 0 to 999 equally often.
SHARES = {"50%": 500, "10%": 100, "1%": 10, "0.1%": 1}
QUERIES, K, POST_FETCH = 100, 10, 100
UNFILTERED = 0.97  # minimum recall of an unfiltered search

Rows = NDArray[np.int64]
"""Row numbers of hits in the index, (queries, K); -1 where a query has fewer hits."""
Search = Callable[[NDArray[np.float32]], Rows]


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, help="keep the indexes in this folder")
    options = parser.parse_args()
    results = Results(options)
    with tempfile.TemporaryDirectory(prefix="bench-filters-") as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        count = QUICK_ROWS if options.quick else N_ROWS
        clusters = Clusters.of(options.seed, count)
        store = prepared(work / "index", clusters, count)
        queries = clusters.queries(QUERIES)
        for name, spec in (QUICK_SPECS if options.quick else SPECS).items():
            measure(results, name, respecified(store, spec), queries)


def prepared(path: Path, clusters: Clusters, count: int) -> IndexStore:
    """Open the index of an earlier run, or write one."""
    if (path / "MANIFEST.json").exists():
        return IndexStore.open(path)
    return write_index(path, clusters, count)


def respecified(store: IndexStore, spec: IndexSpec) -> Snapshot:
    """Build the FAISS files of an index by another spec, and return the new snapshot."""
    from sbert_search.index.upkeep import compaction

    old = store.snapshot.manifest
    if old.settings.spec == spec:
        return store.snapshot
    names = {file.name for file in old.faiss_files}
    bare = old.without(names).with_settings(replace(old.settings, spec=spec))
    with store.writer() as writer:
        writer.rewrite(lambda work: compaction.with_ann(work, writer.snapshot, bare))
    return store.snapshot


def measure(results: Results, name: str, snapshot: Snapshot, queries: NDArray[np.float32]) -> None:
    """Measure one index with filters of every share."""
    snapshot = wide_enough(snapshot, queries)
    for share, below in SHARES.items():
        mask = snapshot.filter_mask(f"part < {below}")
        truth = snapshot.search(queries, K, mask, exact=True)[1]
        ours, ms = timed(partial(filtered, snapshot, mask), queries)
        post, post_ms = timed(partial(post_filtered, snapshot, mask), queries)
        results.add(f"{name}_{share}_recall", Figure(recall(ours, truth), "recall"))
        results.add(f"{name}_{share}_short", Figure(n_short(ours), "queries"))
        results.add(f"{name}_{share}_post_filter_short", Figure(n_short(post), "queries"))
        results.add(f"{name}_{share}_p50", Figure(ms, "ms", post_ms, ms / post_ms))


def wide_enough(snapshot: Snapshot, queries: NDArray[np.float32]) -> Snapshot:
    """Double nprobe and efSearch until the recall without a filter reaches `UNFILTERED`."""
    truth, spec = snapshot.search(queries, K, exact=True)[1], snapshot.settings.spec
    while recall(snapshot.search(queries, K)[1], truth) < UNFILTERED:
        spec = replace(spec, nprobe=2 * spec.nprobe, ef_search=2 * spec.ef_search)
        settings = replace(snapshot.settings, spec=spec)
        manifest = snapshot.manifest.with_settings(settings)
        snapshot = Snapshot(snapshot.folder, manifest, snapshot)
    return snapshot


def filtered(snapshot: Snapshot, mask: RowMask, queries: NDArray[np.float32]) -> Rows:
    """Search the rows that the filter matches."""
    return snapshot.search(queries, K, mask)[1]


def post_filtered(snapshot: Snapshot, mask: RowMask, queries: NDArray[np.float32]) -> Rows:
    """Search without the filter, then drop the rows that do not match."""
    rows = snapshot.search(queries, POST_FETCH)[1]
    # One truth value per row. A row number is an index of `marks`, since no row was ever deleted.
    marks = np.concatenate(mask.parts)
    kept = np.full((len(rows), K), -1, np.int64)
    for number, found in enumerate(rows):
        matching = found[marks[found]][:K]
        kept[number, : len(matching)] = matching
    return kept


def timed(search: Search, queries: NDArray[np.float32]) -> tuple[Rows, float]:
    """Run queries one by one after a warm-up; return their rows and the median time in ms."""
    search(queries[:1])
    found, times_ms = [], []
    for query in queries:
        start = time.perf_counter()
        found.append(search(query[None]))
        times_ms.append(1000 * (time.perf_counter() - start))
    return np.concatenate(found), float(np.median(times_ms))


def recall(rows: Rows, truth: Rows) -> float:
    """Return the share of the true hits that were found."""
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(rows, truth, strict=True)]))


def n_short(rows: Rows) -> float:
    """Count the queries with fewer than K hits."""
    return float(((rows >= 0).sum(axis=1) < K).sum())


if __name__ == "__main__":
    main()
