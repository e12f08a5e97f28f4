"""One task, five engines: SciFact indexed and searched by sbert-search and by what users know.

The others are a script of sentence-transformers and FAISS, txtai, LanceDB and Chroma, each with its
defaults and as its documentation shows (`engines.py`, `engine_peers.py`), and all with the weights
of all-MiniLM-L6-v2. sbert-search computes in bfloat16 where the CPU has it, the others in float32:
those are the defaults. Every task runs in a process of its own, one engine after the other in each
round. Indexing is measured once, from the start of the process to its end.

Beside times it tries what happens when an indexing process is killed: after half of the documents,
at 1,000 texts a second, and at random moments of a stream of small writes. Both use random vectors,
so that the engine is killed and not the model. It also tries what happens when documents change,
when a filter leaves few documents, when another process adds a document, and when the weights
behind the recorded model change.

Needs the extra ``bench`` and the data folder named by SBERT_SEARCH_DATA.
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
from engine_figures import OURS, PEERS, QUICK_DOCS, Bench, Values, child
from engine_tasks import K
from engine_trials import try_changes, try_kill_at_half, try_kills_of_a_stream
from ir_measures import nDCG
from texts import data_folder

HYBRID = (OURS, "txtai", "lancedb")  # the engines that rank by vectors and words together


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--engine", action="append", choices=PEERS, help="default: all, with --quick faiss-script"
    )
    parser.add_argument("--kills", type=int, help="of the stream; default: 5, with --quick 1")
    parser.add_argument(
        "--docs",
        type=int,
        help="the judged documents and others up to so many; default: all, with --quick 50",
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--work", type=Path, help="keep the indexes of --part index here")
    options = parser.parse_args()
    if data_folder() is None:
        parser.error("name the data folder in SBERT_SEARCH_DATA")
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
    bench.results.write()


def try_all(bench: Bench) -> None:
    """Try what the engines do when they are killed and when something changes."""
    try_kill_at_half(bench)
    try_kills_of_a_stream(bench, bench.options.kills or (1 if bench.options.quick else 5))
    try_changes(bench)


def measure_indexing(bench: Bench) -> None:
    """Index the corpus once with each engine."""
    times, memory, size = {}, {}, {}
    for name in bench.names:
        start = time.perf_counter()
        done = child("create", name, bench.index(name), bench.model, bench.docs)
        times[name] = time.perf_counter() - start
        memory[name] = done.anonymous_mib
        size[name] = bytes_of(bench.index(name)) / 2**20
        print(f"{name}: indexed in {times[name]:.0f} s on {done.result['threads']} threads")
    bench.add("index", times, "s")
    bench.add("index_memory", memory, "MiB")
    bench.add("disk", size, "MiB")


def measure_queries(bench: Bench) -> None:
    """Ask the test queries, in rounds, and start processes for one query each."""
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
                done = child("ask", name, bench.index(name), bench.model, mode, texts)
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
        bench.results.write()  # what is known so far
    measure_cold_starts(bench, repeats)


def measure_cold_starts(bench: Bench, repeats: int) -> None:
    """Start a process, open the index, answer one query: whole processes, by the clock."""
    query = next(iter(bench.queries.values()))
    rounds: list[Values] = []
    for _ in range(1 + repeats):  # the first warms the page cache up
        values = {}
        for name in bench.names:
            start = time.perf_counter()
            child("cold", name, bench.index(name), bench.model, query)
            values[name] = time.perf_counter() - start
        rounds.append(values)
    bench.add_rounds("cold_start", rounds[1:], "s")


def judge_filter(bench: Bench, found: dict[str, list[list[str]]]) -> None:
    """Count the hits among one bucket, and how many are of the script's exact ones."""
    bench.add("filtered_hits", {n: float(np.mean([*map(len, f)])) for n, f in found.items()}, "")
    exact = found.get("faiss-script")
    if exact:
        pairs = {n: zip(f, exact, strict=True) for n, f in found.items()}
        recalls = {
            n: float(np.mean([len({*a} & {*b}) / len(b) for a, b in p])) for n, p in pairs.items()
        }
        bench.add("filtered_recall", recalls, "")


def ndcg_at_10(bench: Bench, found: Sequence[Sequence[str]]) -> float:
    """Judge rankings."""
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
