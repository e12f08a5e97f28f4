"""Cold start and memory of `sbert-search serve` with an index of a million documents.

    python benchmarks/bench_serve_memory.py [--quick] [--documents N] [--index DIR] [--out F.json]

Each document has a short text, a number as metadata and a random vector of 384 dimensions; the
default model embeds only the queries. The index has lexical data. The first figure is the time from
the start of the server to the answer to its first search, with the files of the index in the page
cache. The other figures are the anonymous memory of the server: before the first search, after 50
searches, and after the first batch that torch computes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_serve import Server, serving
from common import Figure, Results, arguments
from texts import many_documents, sentences

from sbert_search.embed.embedder import Embedder
from sbert_search.index.index import Index

DOCUMENTS, QUICK_DOCUMENTS = 1_000_000, 20_000
DIM = 384


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument(
        "--documents",
        type=int,
        help="documents of an index that is built; default: 1,000,000, with --quick 20,000",
    )
    parser.add_argument(
        "--index", type=Path, help="use this index, or build and keep it; default: a temporary one"
    )
    options = parser.parse_args()
    results = Results(options)
    with tempfile.TemporaryDirectory(prefix="bench-serve-memory-") as scratch:
        index = options.index or Path(scratch) / "my.index"
        if not index.exists():
            n = options.documents or (QUICK_DOCUMENTS if options.quick else DOCUMENTS)
            build(n, options.seed, index, Path(scratch))
        n_docs = len(Index.open(index))
        command = [sys.executable, "-m", "sbert_search", "serve", str(index), "--port", "PORT"]
        with serving([*command, "--no-access-log"]) as server:
            measure(results, server, n_docs)


def build(n: int, seed: int, index: Path, scratch: Path) -> None:
    """Build the index from random vectors."""
    draw = np.random.default_rng(seed)
    vectors = np.lib.format.open_memmap(
        scratch / "vectors.npy", "w+", np.dtype(np.float32), (n, DIM)
    )
    for start in range(0, n, 50_000):
        part = draw.standard_normal((min(50_000, n - start), DIM), dtype=np.float32)
        vectors[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    vectors.flush()
    del vectors
    rows = (
        {"_id": one.doc_id, "text": one.text, "year": 1900 + at % 125}
        for at, one in enumerate(many_documents(n))
    )
    model = Embedder(precision="fp32")
    Index.build(rows, out=index, model=model, vectors=scratch / "vectors.npy")
    model.keep_graph()  # the graph for servers; a build that embeds texts keeps it, too


def measure(results: Results, server: Server, n: int) -> None:
    """Measure a server that has just begun to serve."""
    idle_mib = server.anonymous_mib
    search(server, "how do vaccines work?")
    seconds = time.perf_counter() - server.started
    results.add(f"first_search_of_{n}_documents", Figure(seconds, "s", 2.0, seconds / 2.0))
    results.add(f"idle_with_{n}_documents", Figure(idle_mib, "MiB", 400, idle_mib / 400))
    for query in sentences(50)[1]:
        search(server, query, where="year > 1950")
    assert engine(server) == "onnx", "torch has been loaded"
    searched_mib = server.anonymous_mib
    results.add("after_50_searches", Figure(searched_mib, "MiB", 400, searched_mib / 400))
    while engine(server) == "onnx":
        assert server.ask("POST", "/v1/embeddings", {"input": sentences(64)[1]})[0] == 200
        time.sleep(0.5)
    assert server.ask("POST", "/v1/embeddings", {"input": sentences(64)[1]})[0] == 200
    results.add("after_the_first_batch_by_torch", Figure(server.anonymous_mib, "MiB"))


def search(server: Server, query: str, **options: object) -> None:
    """Search, and check that there are hits."""
    status, answer = server.ask("POST", "/v1/search", {"query": query, **options})
    assert status == 200, answer
    assert answer["results"][0]["hits"]


def engine(server: Server) -> str:
    """Return the engine of the model."""
    name: str = server.ask("GET", "/info")[1]["models"][0]["engine"]
    return name


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
