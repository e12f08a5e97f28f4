"""Processor time of hybrid queries whose vectors are given: this commit against another one.

    python benchmarks/bench_hybrid.py --before COMMIT [--quick] [--out F.json]

The other commit, the peer, is checked out into a temporary folder. Each commit builds its own index
of the same paragraphs of Wikipedia, and the queries are questions of SQuAD; without
SBERT_SEARCH_DATA they are docstrings. Documents and queries are embedded by hashing words. Two
processes of one thread, one of each commit, answer the same block of queries in turn, and a ratio
is that of the processor times of one block. In a small index, the fusion takes a large share of the
time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench_cold import PACKAGE, Program
from bench_search import write_corpus
from common import REPOSITORY, Figure, Results, arguments, checked_out, paired, repeats_of
from texts import squad_questions

from sbert_search.embed.hashing import HashingEmbedder

CHILD = Path(__file__).with_name("hybrid_child.py")
# Documents. Of the first 5,000 paragraphs of Wikipedia, none is split into passages.
SIZES, QUICK_SIZES = (5_000, 10_000, 100_000), (5_000,)
QUERIES, QUICK_QUERIES = 300, 160
BLOCK = 20  # queries


class Answer(NamedTuple):
    """Processor time of a block of queries in ms, and the ids of the hits of each query."""

    cpu_ms: float
    hits: list[list[str]]


class Version:
    """A process that builds an index with the package in a folder, and searches it.

    Args:
        source: Folder of the package.
        files: Folder of the documents, the queries and their vectors; see `prepare`.
        index: The new index.
    """

    def __init__(self, source: Path, files: Path, index: Path) -> None:
        build = [*PACKAGE, "index", "build", str(files / "corpus.jsonl"), "--model", "hashing"]
        Program([*build, "--out", str(index)], source).output()
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), str(files), str(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        )

    def answer(self, first: int) -> Answer:
        """Answer the block of queries from the query ``first`` on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([first, first + BLOCK]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{CHILD.name} ended with exit code {self._process.wait()}.")
        return Answer(**json.loads(line))

    def close(self) -> None:
        """End the process by closing its input."""
        self._process.communicate()


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--before", metavar="COMMIT", required=True, help="compare with it")
    options = parser.parse_args()
    results = Results(options)
    asked = squad_questions(QUICK_QUERIES if options.quick else QUERIES)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with checked_out(options.before, folder / "before") as source:
            for count in QUICK_SIZES if options.quick else SIZES:
                prepare(folder / str(count), count, asked)
                measure(results, folder / str(count), count, source, len(asked))


def prepare(files: Path, count: int, asked: Sequence[str]) -> None:
    """Write documents, queries and the vectors of the queries."""
    files.mkdir()
    write_corpus(files / "corpus.jsonl", count)
    (files / "queries.json").write_text(json.dumps(asked), encoding="utf-8")
    np.save(files / "vectors.npy", HashingEmbedder().encode_query(asked))


def measure(results: Results, files: Path, count: int, source: Path, n_queries: int) -> None:
    """Compare both versions by each block of queries, in several rounds.

    The first round, in which files are read and caches fill, is not counted.
    """
    mine, theirs = [], []
    with ExitStack() as stack:
        ours = Version(REPOSITORY, files, files / "our.index")
        stack.callback(ours.close)
        peer = Version(source, files, files / "peer.index")
        stack.callback(peer.close)
        for number in range(1 + repeats_of(results.options)):
            for first in range(0, n_queries - BLOCK + 1, BLOCK):
                turn = (ours, peer) if (first // BLOCK + number) % 2 else (peer, ours)
                answers = {version: version.answer(first) for version in turn}
                if number:
                    mine.append(answers[ours])
                    theirs.append(answers[peer])
    shared = overlap(mine, theirs)
    times = [[each.cpu_ms / BLOCK for each in answers] for answers in (mine, theirs)]
    results.add(f"hybrid_{count}", paired(times[0], times[1], unit="ms"))
    results.add(f"hybrid_{count}_shared_hits", Figure(shared, "share"))


def overlap(mine: Sequence[Answer], theirs: Sequence[Answer]) -> float:
    """Return the share of our hits that the peer finds too; exit if a query has no hits."""
    pairs = [
        (set(ours), set(peer))
        for one, two in zip(mine, theirs, strict=True)
        for ours, peer in zip(one.hits, two.hits, strict=True)
    ]
    if not all(ours and peer for ours, peer in pairs):
        raise SystemExit("A query has no hits, so the times are not comparable.")
    return sum(len(ours & peer) / len(ours) for ours, peer in pairs) / len(pairs)


if __name__ == "__main__":
    main()
