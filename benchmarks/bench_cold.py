"""Time of one query in a new process: `sbert-search search` against a script of ten lines.

The script, which is the peer, loads the model with sentence-transformers, reads a FAISS index and
the texts, and prints ten hits. Both programs answer the same query from the same vectors of SciFact
abstracts. The wall time and the processor time of the whole process are measured. Name the folder
of the data sets with the variable SBERT_SEARCH_DATA, or an index with --index.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from common import Results, arguments, compare, repeats_of

from sbert_search.corpus.documents import CorpusReader
from sbert_search.index.index import Index
from sbert_search.models.loading.resolve import resolve_model

QUERY = "does vitamin D deficiency raise the risk of multiple sclerosis?"
QUICK_DOCS = 300
PEER = """
import json, sys
import faiss
from sentence_transformers import SentenceTransformer
folder, model, query = sys.argv[1:]
vector = SentenceTransformer(model, device="cpu").encode([query], normalize_embeddings=True)
scores, rows = faiss.read_index(f"{folder}/flat.faiss").search(vector, 10)
documents = [json.loads(line) for line in open(f"{folder}/documents.jsonl", encoding="utf-8")]
for score, row in zip(scores[0], rows[0]):
    print(json.dumps({"doc_id": documents[row]["doc_id"], "score": float(score), **documents[row]}))
"""


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--index", type=Path, help="search this index instead of building one")
    options = parser.parse_args()
    data = os.environ.get("SBERT_SEARCH_DATA")
    if options.index is None and data is None:
        parser.error("name an index with --index, or the data folder in SBERT_SEARCH_DATA")
    results = Results(options)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        index = options.index or build(Path(data or "") / "scifact", folder, quick=options.quick)
        write_peer_files(Index.open(index), folder)
        model = str(resolve_model(Index.open(index).identity.name).path)
        command = [sys.executable, "-m", "sbert_search", "search", str(index), QUERY]
        ours = [*command, "--mode", "dense", "--json"]
        peer = [sys.executable, "-c", PEER, scratch, model, QUERY]
        require_same_hits(ours, peer)
        repeats = repeats_of(options)
        for name, clock in (("wall", time.perf_counter), ("cpu", children_s)):
            mine, theirs = (seconds(command, clock) for command in (ours, peer))
            results.add(f"cold_search_{name}", compare(mine, theirs, unit="s", repeats=repeats))
    results.write()


def build(source: Path, folder: Path, *, quick: bool) -> Path:
    """Index SciFact; with ``quick``, only its first `QUICK_DOCS` abstracts."""
    if quick:
        batches = CorpusReader([source], batch_rows=QUICK_DOCS).batches()
        lines = [
            json.dumps({"_id": document.doc_id, "title": document.title, "text": document.text})
            for document in next(iter(batches)).documents
        ]
        source = folder / "first.jsonl"
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    Index.build(source, out=folder / "our.index", on_truncate="warn")
    return folder / "our.index"


def write_peer_files(index: Index, folder: Path) -> None:
    """Write the vectors and the documents of an index to files of the peer.

    Position i of the FAISS file and line i of documents.jsonl belong to the same document.
    """
    vectors = [np.load(path) for path in sorted((index.path / "seg").glob("*.vec.npy"))]
    flat = faiss.IndexFlatIP(index.state.manifest.settings.dim)
    flat.add(np.concatenate(vectors).astype(np.float32))
    faiss.write_index(flat, str(folder / "flat.faiss"))
    passages = index.state.fetch(list(range(index.state.n_rows)))
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
        for passage in passages:
            document = passage.document
            record = {"doc_id": document.doc_id, "title": document.title, "text": document.text}
            file.write(json.dumps(record) + "\n")


def require_same_hits(*commands: list[str]) -> None:
    """Exit if the answers differ, because their times are then not comparable."""
    answers = []
    for command in commands:
        lines = subprocess.run(command, capture_output=True, check=True).stdout.splitlines()
        answers.append([json.loads(line)["doc_id"] for line in lines])
    if answers[0] != answers[1]:
        raise SystemExit(f"The hits differ: {answers[0]} and {answers[1]}.")


def seconds(command: list[str], clock: Callable[[], float]) -> Callable[[], float]:
    """Make a function that runs a command and returns its time by a clock."""

    def run() -> float:
        start = clock()
        subprocess.run(command, capture_output=True, check=True)
        return clock() - start

    return run


def children_s() -> float:
    """Return the processor time of ended child processes.

    It depends less than the wall time on other programs that run on the machine.
    """
    used: Any = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    main()
