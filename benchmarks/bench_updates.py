"""Many updates of an index: its results, latency and disk space against a new index.

    python benchmarks/bench_updates.py [--quick] [--spec IVF1024,Flat] [--out F.json]

A hundred rounds of updates (--quick: 10) stand for a month. Each round adds 1 % of the documents,
replaces 1 % and deletes 1 %, in three updates. The vectors are random points around 2,000 centres.

The updated index is compared with the fresh index, a copy of it from before the first round. Both
have the same number of documents. One reader keeps the updated index open and loads its newest
state after each round, as a server does. A second reader has the fresh index open.

After each round both readers get one query. After every seventh round both get a thousand queries,
one by one and alternately. Each reader comes first for half of the queries. (The p99 of fewer
queries would depend on a few pauses of the machine.) A measurement of a thousand queries gives the
p50, the p95, the p99 and the processor time of each reader. Each of the four values of the updated
index is divided by that of the fresh index. The script reports the median of these ratios over all
measurements.

At the end, an index is built anew from the documents that should be left. In exact search the
updated index should give the same answers as the rebuilt one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from common import Figure, Results, arguments, paired, seconds
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.embed.pipeline import EmbeddedBatch
from sbert_search.index.settings import IndexSpec
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.writer import IndexWriter
from sbert_search.records import Document

SPECS = ("Flat", "IVF1024,Flat", "HNSW32")
QUICK_SPECS = ("Flat", "IVF256,Flat")
SHARE = 0.01  # of the documents, for each of the three updates of a round
MEASURE_EVERY = 7  # rounds from one measurement to the next; the index merges all about every 10
N_CENTRES, NOISE = 2000, 0.7  # of the random vectors
N_QUERIES, K = 1000, 10

Vectors = NDArray[np.float32]


class CountingDisk(files.Disk):
    """A disk that counts written bytes."""

    n_bytes = 0

    def write(self, fd: int, data: memoryview) -> int:
        """Write the bytes and count them."""
        self.n_bytes += len(data)
        return super().write(fd, data)


class Ledger:
    """The documents that the updated index should hold.

    Attributes:
        rng: Draws vectors and documents.
        centres: Centres of the vectors, (N_CENTRES, dim).
        numbers: Number of each document, which its id contains.
        vectors: Vector of each document, in the order of ``numbers``.
        n_made: Number of documents ever made, and the number of the next one.
    """

    def __init__(self, dim: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.centres = self.rng.normal(size=(N_CENTRES, dim)).astype(np.float32)
        self.numbers = np.empty(0, np.int64)
        self.vectors = np.empty((0, dim), np.float32)
        self.n_made = 0

    def draw(self, count: int) -> Vectors:
        """Draw vectors around the centres, (count, dim)."""
        near = self.centres[self.rng.integers(0, N_CENTRES, count)]
        return near + self.rng.normal(0, NOISE, near.shape).astype(np.float32)

    def add(self, count: int) -> EmbeddedBatch[None]:
        """Make new documents."""
        numbers = np.arange(self.n_made, self.n_made + count)
        self.n_made += count
        return self._append(numbers)

    def replace(self, count: int) -> EmbeddedBatch[None]:
        """Give some random documents new vectors."""
        return self._append(self.delete(count))

    def delete(self, count: int) -> NDArray[np.int64]:
        """Remove some random documents and return their numbers."""
        at = self.rng.choice(len(self.numbers), count, replace=False)
        numbers = self.numbers[at]
        self.numbers = np.delete(self.numbers, at)
        self.vectors = np.delete(self.vectors, at, axis=0)
        return numbers

    def _append(self, numbers: NDArray[np.int64]) -> EmbeddedBatch[None]:
        vectors = self.draw(len(numbers))
        self.numbers = np.concatenate([self.numbers, numbers])
        self.vectors = np.concatenate([self.vectors, vectors])
        return batch_of(numbers, vectors)


def batch_of(numbers: NDArray[np.int64], vectors: Vectors) -> EmbeddedBatch[None]:
    """Make a batch of documents of one passage each, for `IndexWriter.commit`."""
    documents = [Document(f"d{number}", f"The text of document {number}.") for number in numbers]
    n, zeros = len(numbers), np.zeros(len(numbers), np.int32)
    held_bytes = sum(document.held_bytes for document in documents)
    return EmbeddedBatch(
        documents,
        doc_of=np.arange(n),
        chunk=zeros,
        char_start=zeros.astype(np.int64),
        char_end=np.full(n, 30),
        n_tokens=zeros + 8,
        lost_tokens=zeros,
        vectors=vectors,
        stored_row=np.full(n, -1),
        payload=None,
        held_bytes=held_bytes,
    )


class Month:
    """Measurements during the updates.

    Attributes:
        disk: Counts the written bytes.
        round_s: Seconds of the updates of each round, and their processor time: two lists.
        sizes: Size of the updated index as a multiple of the fresh one's, after each round.
        refresh_ms: Time that the reader took to load the newest state after each round.
        first_ms: Times of the first query after each round: a list for the updated index and a
            list for the fresh index.
        measurements: Results of `latencies` after every seventh round.
    """

    def __init__(self, disk: CountingDisk) -> None:
        self.disk = disk
        self.round_s: tuple[list[float], list[float]] = [], []
        self.sizes: list[float] = []
        self.refresh_ms: list[float] = []
        self.first_ms: tuple[list[float], list[float]] = [], []
        self.measurements: list[NDArray[np.float64]] = []

    def read(
        self, reader: IndexStore, fresh: IndexStore, queries: Vectors, *, measure: bool
    ) -> None:
        """Refresh the reader and time its first query; if ``measure``, time a thousand queries."""
        self.refresh_ms.append(1000 * seconds(reader.refresh))
        both = reader.snapshot, fresh.snapshot
        for snapshot, times in zip(both, self.first_ms, strict=True):
            times.append(1000 * seconds(partial(snapshot.search, queries[:1], K)))
        if measure:
            self.measurements.append(latencies(*both, queries))

    def report(self, results: Results, name: str, *, given: float) -> None:
        """Add the figures; ``given`` is the number of bytes of all added vectors."""
        measurements = np.array(self.measurements)
        for column, part in enumerate(("p50", "p95", "p99", "processor_time")):
            updated, fresh = measurements[:, :, column].T.tolist()
            results.add(f"{name}_{part}", paired(updated, fresh, unit="ms"))
        results.add(f"{name}_first_query", paired(*self.first_ms, unit="ms"))
        results.add(f"{name}_refresh", Figure(float(np.median(self.refresh_ms)), "ms"))
        results.add(f"{name}_disk_worst_round", Figure(max(self.sizes), "x"))
        for what, times in zip(("round", "round_processor_time"), self.round_s, strict=True):
            results.add(f"{name}_{what}_median", Figure(float(np.median(times)), "s"))
            results.add(f"{name}_{what}_longest", Figure(max(times), "s"))
        results.add(f"{name}_bytes_written_per_byte_given", Figure(self.disk.n_bytes / given, "x"))


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument(
        "--spec", action="append", help=f"FAISS factory, repeatable; default: {', '.join(SPECS)}"
    )
    parser.add_argument(
        "--rows", type=int, help="number of documents; default: 200,000, with --quick 60,000"
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds of updates; default: 100, with --quick 10"
    )
    parser.add_argument("--dim", type=int, default=128)
    options = parser.parse_args()
    options.rows = options.rows or (60_000 if options.quick else 200_000)
    options.rounds = options.rounds or (10 if options.quick else 100)
    results = Results(options)
    for spec in options.spec or (QUICK_SPECS if options.quick else SPECS):
        with tempfile.TemporaryDirectory(prefix="bench-updates-") as scratch:
            a_month(results, Path(scratch), spec)


def a_month(results: Results, scratch: Path, factory: str) -> None:
    """Update an index in all rounds; compare it with the fresh and the rebuilt index."""
    options = results.options
    ledger = Ledger(options.dim, options.seed)
    store = build(scratch / "month", factory, options, ledger.add(options.rows))
    with store.writer() as writer:
        writer.backup_to(scratch / "fresh")
    fresh, reader = (IndexStore.open(scratch / name) for name in ("fresh", "month"))
    queries = ledger.draw(N_QUERIES)
    month = Month(CountingDisk())
    with files.use_disk(month.disk):
        for number in range(1, options.rounds + 1):
            for times, spent in zip(month.round_s, one_round(store, ledger), strict=True):
                times.append(spent)
            month.sizes.append(size_of(store.path) / size_of(fresh.path))
            month.read(reader, fresh, queries, measure=number % MEASURE_EVERY == 0)
    name = factory.replace(",", "_")
    month.report(results, name, given=options.rounds * 2 * SHARE * options.rows * options.dim * 4)
    compare_with_rebuild(results, name, store.snapshot, rebuild(scratch, factory, options, ledger))


def rebuild(
    scratch: Path, factory: str, options: argparse.Namespace, ledger: Ledger
) -> tuple[Snapshot, Vectors]:
    """Build an index of the documents left after all rounds, and draw queries."""
    batch = batch_of(ledger.numbers, ledger.vectors)
    store = build(scratch / "rebuilt", factory, options, batch)
    return store.snapshot, ledger.draw(N_QUERIES)


def build(
    path: Path, factory: str, options: argparse.Namespace, batch: EmbeddedBatch[None]
) -> IndexStore:
    """Make an index of one batch."""
    spec = IndexSpec(factory=factory, nprobe=32, ef_search=128)
    store = IndexStore.create(path, Manifest.new(VectorSettings(dim=options.dim, spec=spec)))
    with store.writer() as writer:
        writer.commit(batch)
        writer.finish_build()
    return store


def one_round(store: IndexStore, ledger: Ledger) -> tuple[float, float]:
    """Add, replace and delete documents, as three separate commands would.

    Returns:
        The seconds that this took, and its processor time in seconds.
    """
    count = int(SHARE * len(ledger.numbers))
    added, replaced = ledger.add(count), ledger.replace(count)
    gone = [f"d{number}" for number in ledger.delete(count)]
    updates: Sequence[Callable[[IndexWriter], object]] = (
        lambda writer: writer.commit(added),
        lambda writer: writer.commit(replaced),
        lambda writer: writer.delete(gone),
    )
    start, busy = time.perf_counter(), time.process_time()
    for update in updates:
        with store.writer() as writer:
            update(writer)
            writer.settle()
    return time.perf_counter() - start, time.process_time() - busy


def latencies(updated: Snapshot, fresh: Snapshot, queries: Vectors) -> NDArray[np.float64]:
    """Measure single queries on the updated and the fresh index alternately.

    Returns:
        For each index the p50, p95, p99 and the mean processor time of a query, in ms, (2, 4).
    """
    measured: tuple[list[tuple[float, float]], ...] = [], []
    for i in range(len(queries)):
        pairs = list(zip((updated, fresh), measured, strict=True))
        for snapshot, times in pairs if i % 2 else pairs[::-1]:
            busy = time.process_time()
            wall = seconds(partial(snapshot.search, queries[i : i + 1], K))
            times.append((wall, time.process_time() - busy))
    wall_s, busy_s = np.moveaxis(np.array(measured), 2, 0)
    percentiles = np.percentile(wall_s, [50, 95, 99], axis=1)
    return 1000 * np.column_stack([*percentiles, busy_s.mean(axis=1)])


def compare_with_rebuild(
    results: Results, name: str, updated: Snapshot, other: tuple[Snapshot, Vectors]
) -> None:
    """Compare the updated with the rebuilt index, by exact search and by the recall of both.

    If exact search finds other documents in the updated than in the rebuilt index, the query counts
    as one difference. If the scores differ, that is one difference too. So a query can count twice.
    """
    rebuilt, queries = other
    found, scores = answers(updated, queries, exact=True)
    true, true_scores = answers(rebuilt, queries, exact=True)
    different = sum(a != b for a, b in zip(found, true, strict=True))
    different += int((scores != true_scores).any(axis=1).sum())
    results.add(f"{name}_exact_answers_that_differ", Figure(different, "queries"))
    recalls = [recall(answers(snapshot, queries)[0], true) for snapshot in (updated, rebuilt)]
    results.add(f"{name}_recall", Figure(recalls[0], "", recalls[1], recalls[0] / recalls[1]))


def answers(
    snapshot: Snapshot, queries: Vectors, *, exact: bool = False
) -> tuple[list[list[str]], NDArray[np.float32]]:
    """Return the ids of the documents found for each query, and their scores."""
    scores, rows = snapshot.search(queries, K, exact=exact)
    doc_ids = snapshot.doc_ids(rows.ravel())
    return [doc_ids[i : i + K] for i in range(0, len(doc_ids), K)], scores


def recall(found: Sequence[list[str]], true: Sequence[list[str]]) -> float:
    """Return the share of the nearest documents that were found."""
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, true, strict=True)]))


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
