"""A month of updates: what they do to results, latency and disk, beside an index made afresh.

    python benchmarks/bench_updates.py [--quick] [--spec IVF1024,Flat] [--out F.json]

Each round adds 1 % of the documents, replaces 1 % and deletes 1 %, each as one update of its own.
The vectors are stubs: points around 2,000 centres. Every tenth round single queries go in turn to
the updated index and to the one of the beginning, which has as many documents. In the end
another index is made of what the month should have left, and both must give the same answers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from common import Figure, Results, arguments
from numpy.typing import NDArray

from sbert_search.embedding.pipeline import EmbeddedBatch
from sbert_search.index.manifest import StoreSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.spec import IndexSpec
from sbert_search.index.store import IndexStore
from sbert_search.index.writer import IndexWriter
from sbert_search.records import Document
from sbert_search.runtime import files

SPECS = ("Flat", "IVF1024,Flat", "HNSW32")
QUICK_SPECS = ("Flat", "IVF256,Flat")
SHARE = 0.01  # of the documents, for each of the three updates of a round
LOOK_EVERY = 10  # rounds
N_CENTRES, NOISE = 2000, 0.7
N_QUERIES, K = 400, 10

Vectors = NDArray[np.float32]


class CountingDisk(files.Disk):
    """A disk that counts the bytes written."""

    n_bytes = 0

    def write(self, fd: int, data: memoryview) -> int:
        self.n_bytes += len(data)
        return super().write(fd, data)


class Ledger:
    """What an index should hold, in the order of its rows."""

    def __init__(self, dim: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.centres = self.rng.normal(size=(N_CENTRES, dim)).astype(np.float32)
        self.names = np.empty(0, np.int64)
        self.vectors = np.empty((0, dim), np.float32)
        self.n_made = 0

    def draw(self, count: int) -> Vectors:
        """Draw vectors around the centres, (count, dim)."""
        near = self.centres[self.rng.integers(0, N_CENTRES, count)]
        return near + self.rng.normal(0, NOISE, near.shape).astype(np.float32)

    def add(self, count: int) -> EmbeddedBatch[None]:
        """Add new documents."""
        names = np.arange(self.n_made, self.n_made + count)
        self.n_made += count
        return self._append(names)

    def replace(self, count: int) -> EmbeddedBatch[None]:
        """Give some documents other content."""
        return self._append(self.delete(count))

    def delete(self, count: int) -> NDArray[np.int64]:
        """Delete some documents; returns their names."""
        at = self.rng.choice(len(self.names), count, replace=False)
        names = self.names[at]
        self.names = np.delete(self.names, at)
        self.vectors = np.delete(self.vectors, at, axis=0)
        return names

    def _append(self, names: NDArray[np.int64]) -> EmbeddedBatch[None]:
        vectors = self.draw(len(names))
        self.names = np.concatenate([self.names, names])
        self.vectors = np.concatenate([self.vectors, vectors])
        return batch_of(names, vectors)


def batch_of(names: NDArray[np.int64], vectors: Vectors) -> EmbeddedBatch[None]:
    """Make documents of one passage each."""
    documents = [Document(f"d{name}", f"The text of document {name}.") for name in names]
    n, none = len(names), np.zeros(len(names), np.int32)
    where = np.arange(n), none, none.astype(np.int64), np.full(n, 30)
    return EmbeddedBatch(documents, *where, none + 8, none, vectors, None)


def main() -> None:
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--spec", action="append", help=f"default: {', '.join(SPECS)}")
    parser.add_argument("--rows", type=int, help="default: 200,000, with --quick 60,000")
    parser.add_argument("--rounds", type=int, help="default: 100, with --quick 10")
    parser.add_argument("--dim", type=int, default=128)
    options = parser.parse_args()
    options.rows = options.rows or (60_000 if options.quick else 200_000)
    options.rounds = options.rounds or (10 if options.quick else 100)
    results = Results(options)
    for spec in options.spec or (QUICK_SPECS if options.quick else SPECS):
        with tempfile.TemporaryDirectory(prefix="bench-updates-") as scratch:
            a_month(results, Path(scratch), spec)
    results.write()


def a_month(results: Results, scratch: Path, factory: str) -> None:
    """Update one index for a month and compare it with fresh ones."""
    options = results.options
    ledger = Ledger(options.dim, options.seed)
    store = build(scratch / "month", factory, options, ledger.add(options.rows))
    with store.writer() as writer:
        writer.snapshot_to(scratch / "fresh")
    fresh = IndexStore.open(scratch / "fresh").snapshot
    queries = ledger.draw(N_QUERIES)
    disk, seconds, sizes, ratios = CountingDisk(), [], [], []
    with files.use_disk(disk):
        for number in range(1, options.rounds + 1):
            start = time.perf_counter()
            one_round(store, ledger)
            seconds.append(time.perf_counter() - start)
            sizes.append(size_of(store.path) / size_of(fresh.path))
            if number % LOOK_EVERY == 0:
                ratios.append(latencies(store.snapshot, fresh, queries))
    given = options.rounds * 2 * SHARE * options.rows * options.dim * 4
    worst = np.max([new / old for new, old in ratios], axis=0)
    p50, p99, _ = np.median([new for new, _ in ratios], axis=0)
    old_p50, old_p99, _ = np.median([old for _, old in ratios], axis=0)
    name = factory.replace(",", "_")
    results.add(f"{name}_p50", Figure(p50, "ms", old_p50, p50 / old_p50))
    results.add(f"{name}_p99", Figure(p99, "ms", old_p99, p99 / old_p99))
    results.add(f"{name}_p99_ratio_worst_look", Figure(worst[1], "x"))
    results.add(f"{name}_processor_time_ratio_worst_look", Figure(worst[2], "x"))
    results.add(f"{name}_disk_worst_round", Figure(max(sizes), "x"))
    results.add(f"{name}_round_median", Figure(float(np.median(seconds)), "s"))
    results.add(f"{name}_round_longest", Figure(max(seconds), "s"))
    results.add(f"{name}_bytes_written_per_byte_given", Figure(disk.n_bytes / given, "x"))
    compare_with_rebuild(results, name, store.snapshot, rebuilt(scratch, factory, options, ledger))


def rebuilt(
    scratch: Path, factory: str, options: argparse.Namespace, ledger: Ledger
) -> tuple[Snapshot, Vectors]:
    """Make an index of what the month should have left, and draw queries for both."""
    batch = batch_of(ledger.names, ledger.vectors)
    store = build(scratch / "rebuilt", factory, options, batch)
    return store.snapshot, ledger.draw(N_QUERIES)


def build(
    path: Path, factory: str, options: argparse.Namespace, batch: EmbeddedBatch[None]
) -> IndexStore:
    """Make an index in one commit."""
    spec = IndexSpec(factory=factory, nprobe=32, ef_search=128)
    store = IndexStore.create(path, StoreSettings(dim=options.dim, spec=spec))
    with store.writer() as writer:
        writer.commit(batch)
        writer.finish_build()
    return store


def one_round(store: IndexStore, ledger: Ledger) -> None:
    """Add, replace and delete, each as a command of its own would."""
    count = int(SHARE * len(ledger.names))
    added, replaced = ledger.add(count), ledger.replace(count)
    gone = [f"d{name}" for name in ledger.delete(count)]
    updates: Sequence[Callable[[IndexWriter], object]] = (
        lambda writer: writer.commit(added),
        lambda writer: writer.commit(replaced),
        lambda writer: writer.delete(gone),
    )
    for update in updates:
        with store.writer() as writer:
            update(writer)
            writer.settle()


def latencies(
    updated: Snapshot, fresh: Snapshot, queries: Vectors
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Measure single queries, in turn, of the updated and of the fresh index.

    Returns:
        For each p50 and p99 in ms, and milliseconds of processor time a query.
    """
    measured: list[list[tuple[float, float]]] = [[], []]
    for snapshot in (updated, fresh):
        snapshot.search(queries[:10], K)
    for i in range(len(queries)):
        for snapshot, times in zip((updated, fresh), measured, strict=True):
            start, busy = time.perf_counter(), time.process_time()
            snapshot.search(queries[i : i + 1], K)
            times.append((time.perf_counter() - start, time.process_time() - busy))
    new, old = (
        1000 * np.array([*np.percentile(times, [50, 99], axis=0)[:, 0], np.mean(times, axis=0)[1]])
        for times in measured
    )
    return new, old


def compare_with_rebuild(
    results: Results, name: str, updated: Snapshot, made: tuple[Snapshot, Vectors]
) -> None:
    """Count answers that differ from the rebuilt index's exact ones, and compare recalls."""
    other, queries = made
    new, scores = answers(updated, queries, exact=True)
    old, old_scores = answers(other, queries, exact=True)
    different = sum(a != b for a, b in zip(new, old, strict=True))
    different += int((scores != old_scores).any(axis=1).sum())
    results.add(f"{name}_exact_answers_that_differ", Figure(different, "queries"))
    recalls = [recall(answers(snapshot, queries)[0], old) for snapshot in (updated, other)]
    results.add(f"{name}_recall", Figure(recalls[0], "", recalls[1], recalls[0] / recalls[1]))


def answers(
    snapshot: Snapshot, queries: Vectors, *, exact: bool = False
) -> tuple[list[list[str]], NDArray[np.float32]]:
    """Search, and name the documents found."""
    scores, rows = snapshot.search(queries, K, exact=exact)
    names = snapshot.doc_ids(rows.ravel())
    return [names[i : i + K] for i in range(0, len(names), K)], scores


def recall(found: Sequence[list[str]], true: Sequence[list[str]]) -> float:
    """Share of the nearest documents found."""
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, true, strict=True)]))


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
