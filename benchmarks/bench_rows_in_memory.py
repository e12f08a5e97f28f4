"""Speed of builds from rows and from vectors in memory.

    python benchmarks/bench_rows_in_memory.py [--quick] [--out F.json]

Part one builds an index of 100,000 dicts with the hashing embedder, which hashes words instead of
running a model, and alternates with a build of the same rows from a Parquet file. The ratio of the
two speeds should be at least 0.95.

Part two builds an index of 1,000,000 vectors of 384 dimensions with ids only, and alternates with a
script that writes the same array to one file and waits until the disk has it. The ratio of the two
times should be at most 2. A child process then builds from a mapped file, and the peak of its
anonymous memory is sampled, with that of a process that only imports the package beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import Figure, Results, arguments, compare, rate, repeats_of, run_child, seconds
from numpy.typing import NDArray
from texts import many_documents

from sbert_search import Index

N_ROWS, QUICK_ROWS = 100_000, 5_000
N_VECTORS, QUICK_VECTORS = 1_000_000, 50_000
DIM = 384

Vectors = NDArray[np.float32]


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument(
        "--part", choices=["rows", "vectors"], help="run only this part; default: both"
    )
    parser.add_argument(
        "--child", nargs=2, metavar=("WHAT", "FOLDER"), help="used by the script itself"
    )
    options = parser.parse_args()
    if options.child:
        what, folder = options.child
        print(json.dumps(CHILDREN[what](Path(folder))))
        return
    results = Results(options)
    with tempfile.TemporaryDirectory(prefix="bench-rows-in-memory-") as scratch:
        if options.part != "vectors":
            rows_in_memory(results, Path(scratch), QUICK_ROWS if options.quick else N_ROWS)
        if options.part != "rows":
            count = QUICK_VECTORS if options.quick else N_VECTORS
            vectors_with_ids(results, Path(scratch), count)
            memory_of_a_build(results, Path(scratch), count)


def rows_in_memory(results: Results, scratch: Path, count: int) -> None:
    """Compare builds of the same rows from dicts and from Parquet, in rows a second."""
    documents = many_documents(count)
    rows = [{"_id": doc.doc_id, "title": doc.title, "text": doc.text} for doc in documents]
    file = scratch / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)

    def build(source: Path | list[dict[str, str]]) -> None:
        Index.build(source, out=scratch / "rows", model="hashing")
        shutil.rmtree(scratch / "rows")

    figure = compare(
        lambda: rate(count, lambda: build(rows)),
        lambda: rate(count, lambda: build(file)),
        unit="rows/s",
        repeats=repeats_of(results.options),
        warm_up=results.options.quick,
    )
    results.add(f"build_{count}_dicts_vs_parquet", figure)


def vectors_with_ids(results: Results, scratch: Path, count: int) -> None:
    """Compare a build of vectors with ids with writing the same vectors to one file, in seconds."""
    vectors = draw(count, results.options.seed)
    ids = [f"document-{number}" for number in range(count)]

    def build() -> float:
        took = seconds(lambda: Index.from_vectors(vectors, ids=ids, out=scratch / "vectors"))
        shutil.rmtree(scratch / "vectors")
        return took

    def write() -> float:
        took = seconds(lambda: write_durably(vectors, scratch / "vec.npy"))
        (scratch / "vec.npy").unlink()
        return took

    figure = compare(build, write, unit="s", repeats=repeats_of(results.options))
    results.add(f"build_{count}_vectors_vs_write", figure)


def memory_of_a_build(results: Results, scratch: Path, count: int) -> None:
    """Measure the peak memory of a build from a mapped file, and that of an import alone."""
    write_durably(draw(count, results.options.seed), scratch / "vec.npy")
    built = run_child(__file__, "--child", "build", str(scratch))
    idle = run_child(__file__, "--child", "import", str(scratch))
    ratio = built.anonymous_mib / idle.anonymous_mib
    figure = Figure(built.anonymous_mib, "MiB", idle.anonymous_mib, ratio)
    results.add(f"build_{count}_vectors_anonymous", figure)
    results.add(f"build_{count}_vectors_file_backed", Figure(built.file_mib, "MiB"))


def draw(count: int, seed: int) -> Vectors:
    """Draw vectors, (count, DIM)."""
    return np.random.default_rng(seed).standard_normal((count, DIM), dtype=np.float32)


def write_durably(vectors: Vectors, path: Path) -> None:
    """Write an array and wait until the disk has it."""
    with path.open("wb") as file:
        np.save(file, vectors)
        file.flush()
        os.fsync(file.fileno())


def build_from_file(folder: Path) -> dict[str, int]:
    """Build an index of the vectors in a file, whose ids are their numbers."""
    index = Index.from_vectors(folder / "vec.npy", out=folder / "child")
    return {"documents": len(index)}


def import_only(folder: Path) -> dict[str, int]:
    """Do nothing after the imports."""
    return {"documents": len(list(folder.glob("*.npy")))}


CHILDREN: dict[str, Callable[[Path], dict[str, int]]] = {
    "build": build_from_file,
    "import": import_only,
}


if __name__ == "__main__":
    main()
