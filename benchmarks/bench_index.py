"""Check the predictions of `index tune`, and compare its choice with hnswlib and usearch.

    python benchmarks/bench_index.py [--quick] [--work FOLDER] [--svg F.svg] [--out F.json]

The sets `drawn_N` are N clustered random vectors of 384 dimensions: 10,000, 100,000 and 1,000,000
(--quick: 10,000 and 50,000). With --data FOLDER, two more sets are measured: SciFact, and 101,216
passages of Wikipedia and SQuAD. They are embedded by all-MiniLM-L6-v2 and kept in --work.

`index tune` chooses the FAISS factory and the search settings of each index for a recall of 0.95,
with one half of 2,000 queries (--quick: 600). Recall and speed are then measured with the other
half. The script compares the chosen index with graphs of hnswlib and usearch, the peers. It also
compares an HNSW graph of ours with that of hnswlib. Each peer uses the smallest search width (ef)
that reaches our recall.

Searches use one thread. They get the queries once as one batch, and once one by one. Our index and
the peer take turns, in five rounds (--quick: two). The compared graphs have 16 links and a
construction width of 100 (--quick: 40). Our HNSW graph stores the vectors as bfloat16. The
candidates that it finds are scored again with the stored float32 vectors.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from common import Figure, Results, arguments, compare, rate
from passages import embedded_sets
from peers import Floats, Graph, HnswLib, Rows, USearch, recall, widen
from vectors import Clusters, write_index

from sbert_search.base import svg
from sbert_search.base.processor import usable_cores
from sbert_search.index.settings import MIN_ANN_ROWS, IndexSpec
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.storage.transaction import Transaction
from sbert_search.index.store import IndexStore
from sbert_search.index.tuning.settings import TuneSettings
from sbert_search.index.tuning.trials import how
from sbert_search.index.tuning.tune import remarks, tune
from sbert_search.index.upkeep import compaction

SIZES, QUICK_SIZES = (10_000, 100_000, 1_000_000), (10_000, 50_000)
N_QUERIES, QUICK_QUERIES, K, TARGET = 2_000, 600, 10, 0.95
LINKS, CONSTRUCTION, QUICK_CONSTRUCTION = 16, 100, 40
ALONE = 200  # number of queries asked one by one

Ask = Callable[[Floats], Rows]


@dataclass(frozen=True, slots=True)
class Cost:
    """Measured costs of an index of one size, which `picture` plots."""

    rows: int
    build_s: float
    p50_ms: float
    qps: float
    bytes_per_vector: float


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, help="keep the indexes in this folder")
    parser.add_argument("--data", type=Path, help="the folder with scifact, squad, wikipedia")
    parser.add_argument("--only", help="run one set, such as drawn_1000000")
    parser.add_argument("--svg", type=Path, help="write a plot of the costs by index size")
    parser.add_argument(
        "--max-minutes", type=float, help="limit of one tuning; default: 20, quick 0.5"
    )
    options = parser.parse_args()
    options.repeats = options.repeats or (2 if options.quick else 5)
    results = Results(options)
    with tempfile.TemporaryDirectory(prefix="bench-index-") as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        costs = [
            measured(results, f"drawn_{size}", *drawn(work, size, options.seed))
            for size in (QUICK_SIZES if options.quick else SIZES)
            if options.only in (None, f"drawn_{size}")
        ]
        for name, store, queries in embedded_sets(options.data, work, options.only):
            measured(results, name, store, queries)
    if options.svg and len(costs) > 1:
        options.svg.write_text(picture(costs), encoding="utf-8")


def drawn(work: Path, size: int, seed: int) -> tuple[IndexStore, Floats]:
    """Open or write an index of clustered vectors; return queries that are not in the index."""
    clusters, path = Clusters.of(seed, size), work / f"drawn_{size}"
    known = (path / "MANIFEST.json").exists()
    store = IndexStore.open(path) if known else write_index(path, clusters, size)
    return store, clusters.queries(N_QUERIES)


def measured(results: Results, name: str, store: IndexStore, queries: Floats) -> Cost:
    """Tune an index with half of the queries, and compare it with the peers on the other half.

    The size and the build time of the chosen index are compared with the tuning's predictions.
    """
    options = results.options
    queries = queries[: QUICK_QUERIES if options.quick else N_QUERIES]
    half = len(queries) // 2
    settings = TuneSettings(
        recall=TARGET,
        k=K,
        n_queries=half,
        max_minutes=options.max_minutes or (0.5 if options.quick else 20),
        sample_rows=20_000 if options.quick else 100_000,
        seed=options.seed,
    )
    start = time.perf_counter()
    report = tune(store, settings, queries[:half], origin=f"queries of {name}")
    seconds = time.perf_counter() - start
    assert report.tuning is not None
    trial, unseen = report.tuning.verified, queries[half:]
    truth = store.snapshot.search(unseen, K, exact=True)[1]
    found = recall(store.snapshot.search(unseen, K)[1], truth)
    print(f"{name}: {how(trial.spec)}", *remarks(report), sep="\n")
    results.add(f"{name}_unseen_recall", Figure(found, "recall"))
    results.add(f"{name}_tune", Figure(seconds, "s"))
    if trial.size_bytes:
        expected = trial.predicted_bytes / 2**20
        actual = trial.size_bytes / 2**20
        results.add(f"{name}_bytes", Figure(actual, "MiB", expected, actual / expected))
        expected_s = trial.predicted_build_s
        took = Figure(trial.build_s, "s", expected_s, trial.build_s / expected_s)
        results.add(f"{name}_build", took)
    with importlib.import_module("threadpoolctl").threadpool_limits(1):
        race(results, name, store, unseen, truth, found)
    return Cost(trial.n_rows, trial.build_s, trial.p50_ms, trial.qps, trial.bytes_per_vector)


def race(
    results: Results, name: str, store: IndexStore, queries: Floats, truth: Rows, found: float
) -> None:
    """Compare the index that `tune` chose with both peers, and an HNSW graph of ours with hnswlib.

    An index with fewer than `MIN_ANN_ROWS` rows gets no graph, so the second comparison is left
    out.

    Args:
        results: The figures are added here.
        name: Name of the set of vectors.
        store: The tuned index.
        queries: Queries that were not used for tuning.
        truth: Row numbers of the true nearest vectors.
        found: Recall of the tuned index.
    """
    snapshot = store.snapshot
    rows = np.concatenate([segment.rows for segment in snapshot.segments])
    vectors = np.concatenate([np.asarray(segment.vectors) for segment in snapshot.segments])
    truth = np.searchsorted(rows, truth)  # peers return positions in `vectors`, not our row numbers
    construction = QUICK_CONSTRUCTION if results.options.quick else CONSTRUCTION
    hnswlib = HnswLib(vectors, LINKS, construction, usable_cores())
    peers: dict[str, Graph] = {
        "hnswlib": hnswlib,
        "usearch": USearch(vectors, LINKS, construction, usable_cores()),
    }
    del vectors
    ours = partial(search_of, snapshot)
    for peer, graph in peers.items():
        duel(results, f"{name}_tuned_vs_{peer}", ours, graph, queries, truth, found)
    if snapshot.n_rows < MIN_ANN_ROWS:
        return
    del peers["usearch"]
    graph_snapshot = our_graph(store, construction)

    def set_width(width: int) -> None:
        nonlocal graph_snapshot
        graph_snapshot = respecified(graph_snapshot, width)

    reached = widen(
        set_width,
        lambda q, k: np.searchsorted(rows, graph_snapshot.search(q, k)[1]),
        queries,
        truth,
        TARGET,
    )
    ours = partial(search_of, graph_snapshot)
    duel(results, f"{name}_graph_vs_hnswlib", ours, hnswlib, queries, truth, reached)


def duel(
    results: Results, name: str, ours: Ask, peer: Graph, queries: Floats, truth: Rows, found: float
) -> None:
    """Compare our speed and a peer's, with queries in one batch and one by one.

    Before, the peer's search width is set so that the peer reaches our recall, ``found``.
    """
    reached = widen(peer.set_width, peer.search, queries, truth, found)
    results.add(f"{name}_recall", Figure(found, "recall", reached, found / reached))
    theirs = partial(peer.search, k=K)
    repeats = results.options.repeats
    for label, asked, work in (
        ("together", len(queries), partial(at_once, queries)),
        ("alone", ALONE, partial(one_by_one, queries[:ALONE])),
    ):
        mine, other = partial(rate, asked, partial(work, ours)), partial(work, theirs)
        figure = compare(mine, partial(rate, asked, other), unit="q/s", repeats=repeats)
        results.add(f"{name}_{label}", figure)


def at_once(queries: Floats, ask: Ask) -> None:
    """Search for all queries in one batch."""
    ask(queries)


def one_by_one(queries: Floats, ask: Ask) -> None:
    """Search for each query in a call of its own."""
    for query in queries:
        ask(query[None])


def search_of(snapshot: Snapshot, queries: Floats) -> Rows:
    """Return the rows that the index finds, best first."""
    return snapshot.search(queries, K)[1]


def our_graph(store: IndexStore, construction: int) -> Snapshot:
    """Replace the FAISS files of the index by a graph like the peers'; return the new snapshot."""
    spec = IndexSpec(factory=f"HNSW{LINKS},SQbf16", ef_construction=construction)
    old = store.snapshot.manifest
    names = {file.name for file in old.faiss_files}
    bare = old.without(names).with_settings(replace(old.settings, spec=spec))

    def change(work: Transaction) -> Manifest:
        return compaction.with_ann(work, store.snapshot, bare)

    with store.writer() as writer:
        writer.rewrite(change)
    return store.snapshot


def respecified(snapshot: Snapshot, width: int) -> Snapshot:
    """Return the snapshot with another search width."""
    spec = replace(snapshot.settings.spec, ef_search=width)
    manifest = snapshot.manifest.with_settings(replace(snapshot.settings, spec=spec))
    return Snapshot(snapshot.folder, manifest, snapshot)


def picture(costs: list[Cost]) -> str:
    """Draw build time, latency, speed and size over the number of rows."""
    sizes = [float(cost.rows) for cost in costs]
    panels = {
        "seconds to build": [max(cost.build_s, 0.001) for cost in costs],
        "median latency of one query, ms": [cost.p50_ms for cost in costs],
        "queries a second": [cost.qps for cost in costs],
        "bytes per vector, without the stored vector": [
            max(c.bytes_per_vector, 1.0) for c in costs
        ],
    }
    parts = []
    for number, (title, values) in enumerate(panels.items()):
        axes = svg.Axis.of(sizes, log=True), svg.Axis.of(values, log=True)
        panel = svg.Panel(title, *axes, 190 * number + 26, 190 * number + 170)
        points = list(zip(sizes, values, strict=True))
        parts += [panel.frame(), panel.line(points)]
        parts += [panel.dot(point, svg.COLOUR, f"{point[1]:.4g}") for point in points]
    return svg.document("".join(parts), 190 * len(panels) + 10)


if __name__ == "__main__":
    main()
