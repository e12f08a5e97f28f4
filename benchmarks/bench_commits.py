"""Processor time of embedding, search, updates and training: this commit against another one.

    python benchmarks/bench_commits.py --before COMMIT [--quick] [--repeats N] [--out F.json]

The other commit, the peer, is checked out into a temporary folder. A process of one thread for each
commit does one piece of each work in turn, and a ratio is that of the processor times of one piece.
The texts are paragraphs of Wikipedia; without SBERT_SEARCH_DATA they are docstrings. Hybrid queries
alone are measured at three sizes by `bench_hybrid.py`.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import small_world
from bench_search import write_corpus
from common import REPOSITORY, Figure, Results, arguments, checked_out, paired
from texts import squad_questions

CHILD = Path(__file__).with_name("commits_child.py")
WORKS = ("embedding", "search", "updates", "training")
REPEATS, QUICK_REPEATS = 20, 3
DOCUMENTS, QUICK_DOCUMENTS = 20_000, 500
DRAWS = 10_000  # of the bootstrap interval


class Version:
    """A process that does works with the package in a folder; see `commits_child.py`."""

    def __init__(self, source: Path, files: Path, folder: Path) -> None:
        folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), str(files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        )

    def cpu_seconds(self, work: str) -> float:
        """Do one piece of a work; return its processor time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{work}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{CHILD.name} ended with exit code {self._process.wait()}.")
        return float(line)

    def close(self) -> None:
        """End the process by closing its input."""
        self._process.communicate()


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--before", metavar="COMMIT", required=True, help="compare with it")
    options = parser.parse_args()
    results = Results(options)
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        files = prepare(folder / "files", QUICK_DOCUMENTS if options.quick else DOCUMENTS)
        source = stack.enter_context(checked_out(options.before, folder / "before"))
        ours = Version(REPOSITORY, files, folder / "ours")
        stack.callback(ours.close)
        peer = Version(source, files, folder / "peer")
        stack.callback(peer.close)
        for work in WORKS:
            measure(results, work, ours, peer, repeats)


def prepare(files: Path, count: int) -> Path:
    """Write documents, queries and labelled pairs; return their folder."""
    small_world.write_world(files)
    write_corpus(files / "corpus.jsonl", count)
    (files / "queries.json").write_text(json.dumps(squad_questions(200)), encoding="utf-8")
    return files


def measure(results: Results, work: str, ours: Version, peer: Version, repeats: int) -> None:
    """Add the figure of a work and the interval of its median ratio; the first pair warms up."""
    mine, theirs = [], []
    for number in range(1 + repeats):
        turn = (ours, peer) if number % 2 else (peer, ours)
        times = {version: version.cpu_seconds(work) for version in turn}
        if number:
            mine.append(times[ours])
            theirs.append(times[peer])
    results.add(work, paired(mine, theirs, unit="s"))
    low, high = median_interval([a / b for a, b in zip(mine, theirs, strict=True)])
    results.add(f"{work}_ratio_from", Figure(low, "ratio"))
    results.add(f"{work}_ratio_to", Figure(high, "ratio"))


def median_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The 95 percent interval of a median by the bootstrap percentile method."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return medians[round(0.025 * DRAWS)], medians[round(0.975 * DRAWS) - 1]


if __name__ == "__main__":
    main()
