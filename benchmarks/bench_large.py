"""Write, tune and search millions of documents within a memory limit.

    python benchmarks/bench_large.py [--quick] [--work FOLDER] [--out F.json] [--page docs/scale.md]

The index has 5,000,000 documents (--quick: 120,000). They have no real text, but clustered vectors
of 384 dimensions. The memory budget is 2 GiB (--quick: 600 MiB). Three processes run one after
another. The first writes the index and merges its segments, which are files of consecutive
documents. The second tunes the index, and the third searches it. RLIMIT_DATA limits the data
segment of each process to 1.1 times the budget. The anonymous memory of each process is sampled.
--page writes the figures, extrapolated to 100 million and a billion documents, to the first part of
a page; `scale_costs` writes the rest of it.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from common import ChildRun, Figure, Results, arguments, run_child
from peers import recall
from scale_page import write_sizes
from vectors import DIM, Clusters, write_index

from sbert_search.base.memory import set_memory_limit
from sbert_search.index.dense.faiss_runtime import single_threaded
from sbert_search.index.store import IndexStore
from sbert_search.index.tuning.settings import TuneSettings
from sbert_search.index.tuning.trials import how
from sbert_search.index.tuning.tune import tune

N_ROWS, QUICK_ROWS = 5_000_000, 120_000
MEMORY, QUICK_MEMORY = 2 << 30, 600 << 20
LIMIT = 1.1  # RLIMIT_DATA, as a multiple of the budget
N_QUERIES, K = 200, 10
LARGE = (100_000_000, 1_000_000_000)  # numbers of documents to extrapolate to


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, help="keep the index in this folder")
    parser.add_argument(
        "--page", type=Path, help="write the extrapolated costs of larger indexes to this file"
    )
    parser.add_argument("--max-minutes", type=float, default=30.0, help="limit of the tuning")
    parser.add_argument(
        "--rows", type=int, help="documents; default: 5,000,000, with --quick 120,000"
    )
    parser.add_argument(
        "--memory", type=int, help="budget in bytes; default: 2 GiB, with --quick 600 MiB"
    )
    parser.add_argument(
        "--child", nargs=2, metavar=("WHAT", "FOLDER"), help="used by the script itself"
    )
    options = parser.parse_args()
    rows = options.rows or (QUICK_ROWS if options.quick else N_ROWS)
    memory = options.memory or (QUICK_MEMORY if options.quick else MEMORY)
    if options.child:
        what, folder = options.child
        limit = int(LIMIT * memory)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        child = {"write": write, "tune": tuned, "search": search}[what]
        set_memory_limit(memory)
        print(json.dumps(child(Path(folder), rows, memory, options.seed, options.max_minutes)))
        return
    results = Results(options)
    with tempfile.TemporaryDirectory(prefix="bench-large-") as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        passed = ["--rows", rows, "--memory", memory, "--seed", options.seed]
        passed += ["--max-minutes", options.max_minutes]
        results.add("rows", Figure(rows, "docs"))
        results.add("memory_budget", Figure(memory / 2**20, "MiB"))
        for what in ("write", "tune", "search"):
            if what == "write" and (work / "index" / "MANIFEST.json").exists():
                continue
            ran = run_child(__file__, *map(str, passed), "--child", what, str(work / "index"))
            keep(results, what, ran)
    if options.page:
        write_sizes(options.page, page({n: f.value for n, f in results.figures.items()}))


def keep(results: Results, what: str, ran: ChildRun) -> None:
    """Print the texts of a child's result, and add its numbers and its memory to the figures."""
    for name, value in ran.result.items():
        if isinstance(value, str):
            print(f"{what}: {value}")
        else:
            unit = {"s": "s", "ms": "ms", "bytes": "bytes"}.get(name.rpartition("_")[2], "")
            results.add(f"{what}_{name}", Figure(value, unit))
    results.add(f"{what}_anonymous", Figure(ran.anonymous_mib, "MiB"))
    results.add(f"{what}_file_backed", Figure(ran.file_mib, "MiB"))


def write(
    path: Path, rows: int, memory: int, seed: int, max_minutes: float
) -> dict[str, float | str]:
    """Write the index; return the seconds and the bytes on disk."""
    start = time.perf_counter()
    store = write_index(path, Clusters.of(seed, rows), rows)
    manifest = store.snapshot.manifest
    return {"s": time.perf_counter() - start, "stored_bytes": float(manifest.size_bytes)}


def tuned(
    path: Path, rows: int, memory: int, seed: int, max_minutes: float
) -> dict[str, float | str]:
    """Tune the index; return the chosen spec, its recall, and its predicted and actual costs."""
    settings = TuneSettings(max_minutes=max_minutes, seed=seed)
    start = time.perf_counter()
    report = tune(IndexStore.open(path), settings)
    assert report.tuning is not None
    trial = report.tuning.verified
    return {
        "s": time.perf_counter() - start,
        "chosen": how(trial.spec),
        "recall": trial.recall,
        "index_bytes": float(trial.size_bytes),
        "predicted_bytes": float(trial.predicted_bytes),
        "build_s": trial.build_s,
        "predicted_build_s": trial.predicted_build_s,
    }


def search(
    path: Path, rows: int, memory: int, seed: int, max_minutes: float
) -> dict[str, float | str]:
    """Search with queries one by one on one thread; return recall and latency."""
    snapshot = IndexStore.open(path).snapshot
    queries = Clusters.of(seed, rows).queries(N_QUERIES)
    truth = snapshot.search(queries, K, exact=True)[1]
    found, times_ms = [], []
    with single_threaded():
        for query in queries:
            start = time.perf_counter()
            found.append(snapshot.search(query[None], K)[1])
            times_ms.append(1000 * (time.perf_counter() - start))
    p50, p99 = np.percentile(times_ms, [50, 99])
    reached = recall(np.concatenate(found), truth)
    return {"recall": reached, "p50_ms": float(p50), "p99_ms": float(p99), "first_ms": times_ms[0]}


def page(figures: Mapping[str, float]) -> str:
    """Return the text of the page: the figures, scaled in proportion to the number of documents."""
    measured = int(figures["rows"])
    sizes = (measured, *LARGE)
    per_row = {
        "documents, vectors and ids on disk, GB": figures["write_stored_bytes"] / 1e9,
        "FAISS files on disk, GB (read often: best kept in the page cache)": (
            figures["tune_index_bytes"] / 1e9
        ),
        "writing and merging, hours": figures["write_s"] / 3600,
        "building the FAISS index, hours": figures["tune_build_s"] / 3600,
        "median latency of a query on one machine, ms": figures["search_p50_ms"],
    }
    lines = [
        "# Millions of documents",
        "",
        f"The first column was measured with {measured:,} synthetic documents, whose vectors have",
        f"{DIM} dimensions, under a memory limit of {figures['memory_budget']:,.0f} MiB. The other "
        "columns",
        "are extrapolated in proportion to the number of documents. `benchmarks/bench_large.py`",
        "measured the figures and wrote this part of the page.",
        "",
        "| | " + " | ".join(f"{n:,}" for n in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    for name, value in per_row.items():
        cells = (f"{value * n / measured:,.4g}" for n in sizes)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    peak = max(value for name, value in figures.items() if name.endswith("_anonymous"))
    lines += [
        "",
        f"A process had at most {peak:,.0f} MiB of anonymous memory (without mapped files), under",
        f"an RLIMIT_DATA of {LIMIT} times the memory limit. This memory does not grow with the",
        "number of documents, except for the row numbers that a search reads: about 16 bytes per",
        "document.",
        f"Recall@{K} was {figures['search_recall']:.3f}. Vectors are stored as float32; "
        "`--dtype float16` halves their size.",
        "",
        "The time to embed the documents is not included; the speed of encoding is in",
        "`benchmarks/results/`. A search reads one segment of a million rows after another. For",
        "the larger sizes it is therefore better to distribute the documents over several machines",
        "and to send each query to all of them.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
