"""Speed of index builds, against SentenceTransformer.encode and with many documents.

    python benchmarks/bench_build.py [--quick] [--model FOLDER] [--out F.json]

Part one times the build of an index of up to 10,000 documents with a loaded model. The time starts
when the first document is read and ends when the index is complete on disk. The build alternates
with SentenceTransformer.encode, which gets the same texts in memory. Then two whole programs are
timed, with start-up: the command `index build`, and a script that reads the file and calls
SentenceTransformer.encode.

Part two builds indexes of up to a million documents with the hashing embedder, which hashes words
instead of running a model. Each build runs in a child process whose memory is sampled. Then another
process opens the index and fetches random documents.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from common import (
    Figure,
    Results,
    arguments,
    compare,
    rate,
    repeats_of,
    run_child,
)
from texts import documents, many_documents

from sbert_search import Index
from sbert_search.records import Document

SIZES, QUICK_SIZES = (10_000, 100_000, 1_000_000), (10_000, 50_000)
FETCHES, HITS = 200, 10  # timed fetches, and documents that each of them reads
WARM_UP = 64  # texts that our model and the peer's encode before the first measurement


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--model", help="folder or name; default: the installed all-MiniLM-L6-v2")
    parser.add_argument(
        "--part", choices=["model", "size"], help="run only this part; default: both"
    )
    parser.add_argument(
        "--child", nargs=2, metavar=("WHAT", "FOLDER"), help="used by the script itself"
    )
    options = parser.parse_args()
    if options.child:
        what, folder = options.child
        print(json.dumps(CHILDREN[what](Path(folder), options.seed)))
        return
    results = Results(options)
    with tempfile.TemporaryDirectory(prefix="bench-build-") as scratch:
        if options.part != "size":
            with_a_model(results, Path(scratch))
        if options.part != "model":
            for count in QUICK_SIZES if options.quick else SIZES:
                with_many_documents(results, Path(scratch), count)


def with_a_model(results: Results, scratch: Path) -> None:
    """Compare an index build with SentenceTransformer.encode on the same texts and weights."""
    from sentence_transformers import SentenceTransformer

    from sbert_search import Embedder
    from sbert_search.models.loading.resolve import resolve_model

    options = results.options
    source, corpus = documents(100 if options.quick else 10_000)
    file = write_corpus(scratch / "corpus.jsonl", corpus)
    folder = resolve_model(options.model).path
    embedder = Embedder(folder, device="cpu", precision="fp32")
    peer = SentenceTransformer(str(folder), device="cpu")
    texts = [document.full_text for document in corpus]

    def build() -> None:
        shutil.rmtree(scratch / "index", ignore_errors=True)
        Index.build([file], out=scratch / "index", model=embedder, on_truncate="warn")

    embedder.encode(texts[:WARM_UP]), peer.encode(texts[:WARM_UP])
    figure = compare(
        lambda: rate(len(texts), build),
        lambda: rate(len(texts), lambda: peer.encode(texts)),
        unit="docs/s",
        repeats=repeats_of(options),
        warm_up=False,
    )
    results.add(f"build_{source}", figure)
    shutil.rmtree(scratch / "index")
    command = ["index", "build", str(file), "--out", str(scratch / "index"), "--model", str(folder)]
    command += ["--on-truncate", "warn"]
    ours = program_seconds("-m", "sbert_search", *command, "--precision", "fp32", "--quiet")
    theirs = program_seconds("-c", PEER_PROGRAM, str(file), str(folder))
    results.add(f"build_{source}_with_start_up", Figure(ours, "s", theirs, ours / theirs))
    shutil.rmtree(scratch / "index")


PEER_PROGRAM = """
import json, sys
from sentence_transformers import SentenceTransformer
rows = map(json.loads, open(sys.argv[1], encoding="utf-8"))
texts = [f"{row['title']} {row['text']}".strip() for row in rows]
SentenceTransformer(sys.argv[2], device="cpu").encode(texts)
"""


def program_seconds(*command: str) -> float:
    """Return the wall time of one Python program, from start to exit."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def with_many_documents(results: Results, scratch: Path, count: int) -> None:
    """Measure a build in one child process, and fetches of documents in another.

    The hashing embedder needs almost no time or memory, so the figures are the costs of the index
    alone.
    """
    folder = scratch / f"{count}"
    folder.mkdir()
    write_corpus(folder / "corpus.jsonl", many_documents(count))
    seed = str(results.options.seed)
    built = run_child(__file__, "--seed", seed, "--child", "build", str(folder))
    results.add(f"build_{count}", Figure(built.result["docs_per_s"], "docs/s"))
    results.add(f"build_{count}_anonymous", Figure(built.anonymous_mib, "MiB"))
    results.add(f"build_{count}_file_backed", Figure(built.file_mib, "MiB"))
    fetched = run_child(__file__, "--seed", seed, "--child", "fetch", str(folder))
    results.add(f"fetch_{HITS}_of_{count}_first", Figure(fetched.result["first_ms"], "ms"))
    results.add(f"fetch_{HITS}_of_{count}_p50", Figure(fetched.result["p50_ms"], "ms"))
    results.add(f"fetch_{HITS}_of_{count}_p99", Figure(fetched.result["p99_ms"], "ms"))
    shutil.rmtree(folder)


def child_build(folder: Path, seed: int) -> dict[str, float]:
    """Index the corpus in the folder with the hashing embedder."""
    start = time.perf_counter()
    index = Index.build([folder / "corpus.jsonl"], out=folder / "index", model="hashing")
    return {"docs_per_s": len(index) / (time.perf_counter() - start)}


def child_fetch(folder: Path, seed: int) -> dict[str, float]:
    """Measure the time to fetch random documents from a newly opened index."""
    index = Index.open(folder / "index")
    rng = np.random.default_rng(seed)
    times_ms = []
    for _ in range(FETCHES):
        rows = rng.choice(index.state.n_rows, HITS, replace=False)
        start = time.perf_counter()
        index.state.fetch(rows)
        times_ms.append(1000 * (time.perf_counter() - start))
    p50, p99 = np.percentile(times_ms, [50, 99])
    return {"first_ms": times_ms[0], "p50_ms": float(p50), "p99_ms": float(p99)}


CHILDREN = {"build": child_build, "fetch": child_fetch}


def write_corpus(path: Path, corpus: Iterable[Document]) -> Path:
    """Write documents as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for document in corpus:
            row = {"_id": document.doc_id, "title": document.title, "text": document.text}
            file.write(json.dumps(row) + "\n")
    return path


if __name__ == "__main__":
    main()
