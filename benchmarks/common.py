"""What all benchmarks share: options, alternating measurements, memory of processes, result files.

"Ours" is this package, and "the peer" is the library or script that this package is compared with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from sbert_search.base.machine import library_versions, made_with

REPOSITORY = Path(__file__).resolve().parents[1]
PEERS = ("bm25s", "chromadb", "hnswlib", "lancedb", "tantivy", "txtai", "usearch")


def repeats_of(options: argparse.Namespace) -> int:
    """Return how often each measurement is made: --repeats, or else 3, with --quick 2."""
    return int(options.repeats or (2 if options.quick else 3))


def arguments(description: str) -> argparse.ArgumentParser:
    """Start a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="end within two minutes")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, help="rounds; default: 3, with --quick 2")
    return parser


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, and the value that it is compared with, if there is one.

    Attributes:
        value: Our value. If it was measured several times, the median.
        unit: Unit, such as "docs/s" or "MiB".
        peer: The peer's value, or another value to compare with, such as a prediction. None: there
            is none.
        ratio: ``value`` divided by ``peer``. With several repeats, the median of their ratios.
        repeats: All measured values of "ours" and of "peer", in the order of measurement.
    """

    value: float
    unit: str
    peer: float | None = None
    ratio: float | None = None
    repeats: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def ratio_range(self) -> tuple[float, float] | None:
        """The smallest and the largest ratio among the repeats."""
        if not self.repeats or self.ratio is None:
            return None
        ratios = _ratios(self.repeats["ours"], self.repeats["peer"])
        return min(ratios), max(ratios)


def compare(
    ours: Callable[[], float],
    peer: Callable[[], float],
    *,
    unit: str,
    repeats: int,
    warm_up: bool = True,
) -> Figure:
    """Measure ours and the peer alternately (ours, peer, ours, peer, ...).

    A drift of the machine's speed then affects both equally. Each ratio is made of two consecutive
    measurements. With `warm_up` one more round comes first and is not counted. If a round takes
    minutes, pass False and do a shorter warm-up before the call.
    """
    if warm_up:
        ours(), peer()
    rounds = [(ours(), peer()) for _ in range(repeats)]
    mine, theirs = [list(values) for values in zip(*rounds, strict=True)]
    return paired(mine, theirs, unit=unit)


def paired(mine: list[float], theirs: list[float], *, unit: str) -> Figure:
    """Make a figure from values that were measured alternately."""
    return Figure(
        statistics.median(mine),
        unit,
        statistics.median(theirs),
        statistics.median(_ratios(mine, theirs)),
        {"ours": mine, "peer": theirs},
    )


@contextlib.contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a folder, as a worktree of this repository that is removed again."""
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


@contextlib.contextmanager
def timed_steps() -> Iterator[list[float]]:
    """Yield a list that gets the start and the end of each training step, in seconds."""
    from sbert_search.train.loop.step import Stepper

    times: list[float] = []
    take = Stepper.take

    def timed(*given: Any) -> Any:
        times.append(time.perf_counter())
        figures = take(*given)
        times.append(time.perf_counter())
        return figures

    with mock.patch.object(Stepper, "take", timed):
        yield times


def rate(count: int, work: Callable[[], object]) -> float:
    """Call a function that processes ``count`` units, and return the units a second."""
    return count / seconds(work)


def processor_rate(count: int, work: Callable[[], object]) -> float:
    """Call a function that processes ``count`` units; return the units per processor second."""
    start = time.process_time()
    work()
    return count / (time.process_time() - start)


def seconds(work: Callable[[], object]) -> float:
    """Call a function and return its wall time in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _ratios(ours: list[float], peer: list[float]) -> list[float]:
    return [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]


@dataclass(slots=True)
class Results:
    """The figures of one benchmark run: a table on stdout and, if asked for, a JSON file.

    The file is written with each figure, so that an interrupted run leaves the figures before.
    """

    options: argparse.Namespace
    figures: dict[str, Figure] = field(default_factory=dict)

    def add(self, name: str, figure: Figure) -> None:
        """Store a figure, print its line and write the file."""
        self.figures[name] = figure
        line = f"{name:<44} {figure.value:>12,.4g} {figure.unit:<8}"
        if figure.peer is not None and figure.ratio is not None:
            line += f" peer {figure.peer:>10,.4g}  ratio {figure.ratio:.3f}"
            if figure.ratio_range:
                line += " ({:.3f} to {:.3f})".format(*figure.ratio_range)
        print(line, flush=True)
        self._write()

    def _write(self) -> None:
        """Write the JSON file with the figures and the raw repeats."""
        if self.options.out is None:
            return
        made = made_with()
        made["libraries"] |= library_versions(PEERS)
        record = {
            "figures": {
                name: {"value": f.value, "unit": f.unit, "peer": f.peer, "ratio": f.ratio}
                for name, f in self.figures.items()
            },
            "repeats": {name: f.repeats for name, f in self.figures.items() if f.repeats},
            **made,
            "seed": self.options.seed,
        }
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        self.options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ChildRun:
    """The result of a child process and its maximum memory.

    Attributes:
        result: The JSON object that the process printed.
        anonymous_mib: Peak of the anonymous memory.
        file_mib: Peak of the pages of mapped files.
    """

    result: dict[str, Any]
    anonymous_mib: float
    file_mib: float


def run_child(script: str, *child_arguments: str) -> ChildRun:
    """Run a Python script in a child process, and sample the memory that the child uses.

    The last line that the script prints must be one JSON object. Anonymous memory is RssAnon +
    RssShmem, which the kernel cannot drop. Pages of mapped files (RssFile) are counted separately.
    Both numbers include the processes that the script starts.
    """
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    child = subprocess.Popen(
        [sys.executable, script, *child_arguments], stdout=subprocess.PIPE, env=environment
    )
    peaks = {"anonymous": 0, "file": 0}
    sampler = threading.Thread(target=_sample, args=(child, peaks), daemon=True)
    sampler.start()
    output, _ = child.communicate()
    sampler.join()
    if child.returncode != 0:
        raise SystemExit(f"{script} {' '.join(child_arguments)} failed ({child.returncode}).")
    result = json.loads(output.decode().splitlines()[-1])
    return ChildRun(result, peaks["anonymous"] / 1024, peaks["file"] / 1024)


def _sample(child: subprocess.Popen[bytes], peaks: dict[str, int]) -> None:
    while child.returncode is None:
        kib: Counter[str] = Counter()
        for process in _family(child.pid):
            # A process may end at any time, and this system may have no /proc.
            with contextlib.suppress(OSError):
                kib.update(dict(_memory_lines(Path(f"/proc/{process}/status").read_text())))
        peaks["anonymous"] = max(peaks["anonymous"], kib["RssAnon"] + kib["RssShmem"])
        peaks["file"] = max(peaks["file"], kib["RssFile"])
        time.sleep(0.01)


def _family(process: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield process
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                yield from _family(int(child))


def _memory_lines(status: str) -> Iterator[tuple[str, int]]:
    """Yield name and KiB of each line about resident memory in /proc/PID/status."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name.startswith("Rss"):
            yield name, int(value.split()[0])
