"""Time of one query in a new process: `sbert-search search` against a script, or another commit.

The script, which is the peer, loads the model with sentence-transformers, reads a FAISS index and
the texts, and prints ten hits. Both programs answer the same query from the same vectors of SciFact
abstracts. The wall time and the processor time of the whole process are measured. Name the folder
of the data sets with the variable SBERT_SEARCH_DATA, or an index with --index.

With --query-model MODEL, a search whose query this model embeds is compared with one by the model
of the index, and with a process that only imports the libraries that any search needs.

With --before COMMIT, the peer is this package at another commit of this repository. Both run
`--help`, `import sbert_search` and a search in each mode, in turn; the peak memory and the number
of modules of this package that the process imported are compared, too. The commit is checked out
into a temporary folder.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from common import REPOSITORY, Results, arguments, checked_out, paired, repeats_of

from sbert_search.index.index import Index
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.text.documents import CorpusReader

QUERY = "does vitamin D deficiency raise the risk of multiple sclerosis?"
QUICK_DOCS = 300
PACKAGE = (sys.executable, "-m", "sbert_search")
# Options of the searches that --before compares. "default" has none: it is what users type.
SEARCHES = {
    "dense": ("--mode", "dense", "--json"),
    "lexical": ("--mode", "lexical"),
    "hybrid": ("--mode", "hybrid", "--json"),
    "default": (),
}
# Imports of processes that do nothing; an exact scan needs no FAISS.
FLOORS = {"floor": "numpy, pyarrow", "floor_with_faiss": "numpy, pyarrow, faiss"}
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


# Runs the command line, which at its end prints the peak memory of the process and its number of
# modules of the package. (The peak that the system reports for a process that has ended may be that
# of the one that started it.)
PROBE = """
import atexit, runpy, sys
def probe():
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    own = sum(name.partition(".")[0] == "sbert_search" for name in sys.modules)
    print("probed", int(peak.split()[1]) / 1024, own, flush=True)
atexit.register(probe)
runpy.run_module("sbert_search", run_name="__main__", alter_sys=True)
"""


class Times(NamedTuple):
    """Seconds of a process."""

    wall: float
    cpu: float  # depends less than the wall time on other programs that run on the machine


class Program(NamedTuple):
    """A command, and the folder from which it imports this package."""

    command: Sequence[str]
    source: Path = REPOSITORY

    def run(self) -> Times:
        """Run the command and measure its process."""
        before, start = _children_s(), time.perf_counter()
        self.output()
        return Times(time.perf_counter() - start, _children_s() - before)

    def probed(self) -> tuple[float, float]:
        """Run a command of `PROBE`; return its peak memory in MiB and its number of modules."""
        [line] = (line for line in self.output() if line.startswith("probed "))
        _, peak, modules = line.split()
        return float(peak), float(modules)

    def output(self) -> list[str]:
        """Run the command and return the lines that it prints."""
        environment = {**os.environ, "PYTHONPATH": str(self.source)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # users import compiled modules
        done = subprocess.run(
            self.command,
            capture_output=True,
            check=True,
            cwd=self.source,  # `python -m` imports from here first
            env=environment,
            text=True,
        )
        return done.stdout.splitlines()


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--index", type=Path, help="search this index instead of building one")
    parser.add_argument("--query-model", type=Path, metavar="MODEL", help="also search with this")
    parser.add_argument("--before", metavar="COMMIT", help="compare with this commit")
    options = parser.parse_args()
    data = os.environ.get("SBERT_SEARCH_DATA")
    if options.index is None and data is None:
        parser.error("name an index with --index, or the data folder in SBERT_SEARCH_DATA")
    results, repeats = Results(options), repeats_of(options)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        texts = source_of(Path(data or "") / "scifact", folder, quick=options.quick)
        index = options.index and options.index.resolve()
        if options.before:
            with checked_out(options.before, folder / "before") as source:
                mine = index or build(texts, folder / "our.index")
                theirs = index or build(texts, folder / "peer.index", source)
                compare_versions(results, source, (mine, theirs), repeats)
        else:
            index = index or build(texts, folder / "our.index")
            search = [*PACKAGE, "search", str(index), QUERY]
            write_peer_files(Index.open(index), folder)
            model = str(resolve_model(Index.open(index).identity.name).path)
            ours = Program([*search, "--mode", "dense", "--json"])
            peer = Program([sys.executable, "-c", PEER, scratch, model, QUERY])
            require_same_hits(ours, peer)
            add(results, "cold_search", ours, peer, repeats)
            if options.query_model:
                Index.open(index).backup(folder / "small.index")
                Index.open(folder / "small.index").add_query_model(options.query_model.resolve())
                search = [*PACKAGE, "search", str(folder / "small.index"), QUERY, "--mode", "dense"]
                peers = {"": Program(search)}
                for name, modules in FLOORS.items():
                    peers[f"_{name}"] = Program([sys.executable, "-c", f"import {modules}"])
                small = Program([*search, "--query-model", "fast"])
                for name, peer in peers.items():
                    add(results, f"cold_query_model{name}", small, peer, repeats)


def add(results: Results, name: str, ours: Program, peer: Program, repeats: int) -> None:
    """Run two programs in turn; add a figure of the wall time and one of the processor time.

    The first round, in which Python compiles modules and the system reads files, is not counted.
    """
    rounds = [(ours.run(), peer.run()) for _ in range(1 + repeats)][1:]
    for clock in Times._fields:
        mine = [getattr(times, clock) for times, _ in rounds]
        theirs = [getattr(times, clock) for _, times in rounds]
        results.add(f"{name}_{clock}", paired(mine, theirs, unit="s"))


def compare_versions(
    results: Results, source: Path, indexes: tuple[Path, Path], repeats: int
) -> None:
    """Run the commands by this version and by that in the folder ``source``, in turn.

    Args:
        results: The figures are added to it.
        source: Folder of the other package.
        indexes: The index of this version, and that of the other one.
        repeats: Number of rounds.
    """
    imported = [sys.executable, "-c", "import sbert_search"]
    for name, command in (("help", [*PACKAGE, "--help"]), ("import", imported)):
        add(results, name, Program(command), Program(command, source), repeats)
    for name, given in SEARCHES.items():
        ours, peer = (["search", str(index), QUERY, *given] for index in indexes)
        add(results, name, Program([*PACKAGE, *ours]), Program([*PACKAGE, *peer], source), repeats)
        probe = [sys.executable, "-c", PROBE]
        mine = [Program([*probe, *ours]).probed() for _ in range(repeats)]
        theirs = [Program([*probe, *peer], source).probed() for _ in range(repeats)]
        for at, unit in enumerate(("MiB", "modules")):
            both = ([values[at] for values in side] for side in (mine, theirs))
            results.add(f"{name}_{unit.lower()}", paired(*both, unit=unit))


def source_of(scifact: Path, folder: Path, *, quick: bool) -> Path:
    """Return the file or folder to index; with ``quick``, the first `QUICK_DOCS` abstracts."""
    if not quick or not scifact.exists():
        return scifact
    batches = CorpusReader([scifact], batch_rows=QUICK_DOCS).batches()
    lines = [
        json.dumps({"_id": document.doc_id, "title": document.title, "text": document.text})
        for document in next(iter(batches)).documents
    ]
    first = folder / "first.jsonl"
    first.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return first


def build(texts: Path, index: Path, source: Path = REPOSITORY) -> Path:
    """Index texts, one vector each, with the package in the folder ``source``."""
    command = [*PACKAGE, "index", "build", str(texts), "--out", str(index)]
    Program([*command, "--on-truncate", "warn"], source).output()
    return index


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


def require_same_hits(*programs: Program) -> None:
    """Exit if the answers differ, because their times are then not comparable."""
    answers = [[json.loads(line)["doc_id"] for line in each.output()] for each in programs]
    if answers[0] != answers[1]:
        raise SystemExit(f"The hits differ: {answers[0]} and {answers[1]}.")


def _children_s() -> float:
    """Return the processor time of ended child processes."""
    used: Any = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    main()
