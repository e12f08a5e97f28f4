"""Index and search SciFact with five search engines, and compare speed, quality and reliability.

The engines are sbert-search, a script with sentence-transformers and FAISS, txtai, LanceDB and
Chroma. Each is used with its defaults and as its documentation shows (`engines.py`,
`engine_peers.py`). All use the weights of all-MiniLM-L6-v2. By default, sbert-search computes in
bfloat16 if the CPU supports it; the others compute in float32. Every task runs in a process of its
own. In each round of a measurement the engines take turns. Indexing is measured once, from the
start of the process to its end.

Two trials kill a process that writes. In the first, the process dies after it has embedded half of
the documents. A pause before each batch slows its embedding down to 1,000 texts a second. In the
second trial, the process writes one small batch after another and is killed at a random moment.
These two trials use no model: sbert-search hashes words to vectors, and the other engines get
random vectors. The other trials change documents, add a document in another process, and change the
weights of the model that made an index. Searches with a filter are measured together with the other
queries.

The script needs the extra ``bench``, and the folder of the data sets in SBERT_SEARCH_DATA.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ir_measures
import numpy as np
from common import arguments, repeats_of
from engine_figures import OURS, PEERS, QUICK_DOCS, Bench, Values, run_task
from engine_tasks import K
from engine_trials import try_changes, try_kill_at_half, try_kills_of_a_stream
from ir_measures import nDCG
from texts import data_folder

HYBRID = (OURS, "txtai", "lancedb")  # the engines that rank by vectors and words together


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--engine",
        action="append",
        choices=PEERS,
        help="engine to compare with, repeatable; default: all, with --quick faiss-script",
    )
    parser.add_argument(
        "--kills", type=int, help="kills in a stream of writes; default: 5, with --quick 1"
    )
    parser.add_argument(
        "--docs",
        type=int,
        help="number of documents, judged ones first; default: all, with --quick 50",
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="repeatable; default: all")
    parser.add_argument("--work", type=Path, help="keep the indexes of --part index here")
    options = parser.parse_args()
    if data_folder() is None:
        parser.error("set SBERT_SEARCH_DATA to the folder of the data sets")
    options.docs = options.docs or (QUICK_DOCS if options.quick else None)
    peers = options.engine or (["faiss-script"] if options.quick else PEERS)
    with tempfile.TemporaryDirectory(prefix="bench-engines-") as scratch:
        folder = options.work or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(options, folder, [OURS, *peers])
        bench.add("documents", dict.fromkeys(bench.names, len(bench.rows)), "")
        for part, measure in PARTS.items():
            if part in (options.part or PARTS):
                measure(bench)
    bench.print_table()


def try_all(bench: Bench) -> None:
    """Kill the engines while they write, and change documents and models."""
    try_kill_at_half(bench)
    try_kills_of_a_stream(bench, bench.options.kills or (1 if bench.options.quick else 5))
    try_changes(bench)


def measure_indexing(bench: Bench) -> None:
    """Index the corpus once with each engine."""
    times, memory, size = {}, {}, {}
    for name in bench.names:
        start = time.perf_counter()
        done = run_task("create", name, bench.index(name), bench.model, bench.docs)
        times[name] = time.perf_counter() - start
        memory[name] = done.anonymous_mib
        size[name] = bytes_of(bench.index(name)) / 2**20
        print(f"{name}: indexed in {times[name]:.0f} s on {done.result['threads']} threads")
    bench.add("index", times, "s")
    bench.add("index_memory", memory, "MiB")
    bench.add("disk", size, "MiB")


def measure_queries(bench: Bench) -> None:
    """Measure all test queries in rounds, and then processes that answer only one query each."""
    repeats = repeats_of(bench.options)
    texts = json.dumps(list(bench.queries.values()))
    for mode in ("dense", "hybrid"):
        names = [name for name in bench.names if mode == "dense" or name in HYBRID]
        rounds: list[dict[str, Values]] = []
        quality: Values = {}
        filtered: dict[str, list[list[str]]] = {}
        for _ in range(repeats):
            values: dict[str, Values] = {"p50": {}, "p99": {}, "memory": {}}
            for name in names:
                done = run_task("ask", name, bench.index(name), bench.model, mode, texts)
                p50, p99 = np.percentile(done.result["milliseconds"], [50, 99])
                values["p50"][name], values["p99"][name] = float(p50), float(p99)
                values["memory"][name] = done.anonymous_mib
                quality[name] = ndcg_at_10(bench, done.result["found"])
                filtered[name] = done.result["filtered"]
            rounds.append(values)
        bench.add(f"{mode}_ndcg_at_10", quality, "")
        for measure, unit in (("p50", "ms"), ("p99", "ms"), ("memory", "MiB")):
            bench.add_rounds(f"{mode}_{measure}", [values[measure] for values in rounds], unit)
        if mode == "dense":
            judge_filter(bench, filtered)
    measure_cold_starts(bench, repeats)


def measure_cold_starts(bench: Bench, repeats: int) -> None:
    """Measure the wall time of processes that open an index and answer one query."""
    query = next(iter(bench.queries.values()))
    rounds: list[Values] = []
    for _ in range(1 + repeats):  # the first warms the page cache up
        values = {}
        for name in bench.names:
            start = time.perf_counter()
            run_task("cold", name, bench.index(name), bench.model, query)
            values[name] = time.perf_counter() - start
        rounds.append(values)
    bench.add_rounds("cold_start", rounds[1:], "s")


def judge_filter(bench: Bench, found: dict[str, list[list[str]]]) -> None:
    """Add the mean number of hits of filtered queries, and their recall.

    Recall is the share of the hits of faiss-script that an engine finds too. The hits of
    faiss-script are the true ones, because it compares the query with every document that passes
    the filter.
    """
    bench.add("filtered_hits", {n: float(np.mean([*map(len, f)])) for n, f in found.items()}, "")
    exact = found.get("faiss-script")
    if exact:
        pairs = {n: zip(f, exact, strict=True) for n, f in found.items()}
        recalls = {
            n: float(np.mean([len({*a} & {*b}) / len(b) for a, b in p])) for n, p in pairs.items()
        }
        bench.add("filtered_recall", recalls, "")


def ndcg_at_10(bench: Bench, found: Sequence[Sequence[str]]) -> float:
    """Return the mean nDCG@10 of the rankings of all queries."""
    run = [
        ir_measures.ScoredDoc(query, doc, float(K - rank))
        for query, docs in zip(bench.queries, found, strict=True)
        for rank, doc in enumerate(docs)
    ]
    qrels = [qrel for qrel in bench.qrels if qrel.query_id in bench.queries]
    return float(ir_measures.calc_aggregate([nDCG @ 10], qrels, run)[nDCG @ 10])


def bytes_of(folder: Path) -> int:
    """Add up the sizes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


PARTS: dict[str, Callable[[Bench], None]] = {
    "trials": try_all,
    "index": measure_indexing,
    "queries": measure_queries,
}

if __name__ == "__main__":
    main()
