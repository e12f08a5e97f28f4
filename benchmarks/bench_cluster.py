"""Cost and scaling of builds on a Ray cluster, against builds without Ray.

    python benchmarks/bench_cluster.py [--quick] [--corpus FILE.jsonl] [--model NAME] [--out F.json]

Part one alternates a build on one worker with a plain build of the same documents, with equal
numbers of threads. The model is loaded in this process and in the workers before the first
measurement, and Ray's start is not included. Part two alternates two workers of one thread with
one. Each build must end with the same vectors. The last figure is the
limit that the driver sets, since it alone reads documents and writes the index: the documents a
second of a build with the hashing embedder, which computes almost nothing.

Without --corpus, the documents are those of bench_build.py.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from functools import partial
from itertools import islice
from pathlib import Path

from bench_build import write_corpus
from common import Figure, Results, arguments, compare, rate, repeats_of
from texts import documents, many_documents

from sbert_search import Embedder, Index, RayRunner
from sbert_search.embed.protocol import TextEmbedder

WARM_UP = 20  # documents of the build that starts the workers
OBJECT_STORE_BYTES = 100_000_000
THREADS = 1  # of the model, in each worker and in the plain build


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--corpus", type=Path, help="JSON lines; default: up to 10,000 texts")
    parser.add_argument("--model", help="folder or name; default: the installed all-MiniLM-L6-v2")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(THREADS)  # of the workers, which inherit it
    results = Results(options)
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as scratch:
        corpus = options.corpus
        if corpus is None:
            _, texts = documents(300 if options.quick else 10_000)
            corpus = write_corpus(Path(scratch) / "corpus.jsonl", texts)
        with_a_model(results, corpus, Path(scratch))
        limit_of_the_writer(results, Path(scratch), 5_000 if options.quick else 100_000)


def with_a_model(results: Results, corpus: Path, scratch: Path) -> None:
    """Compare one worker with a plain build, and two workers with one."""
    import ray
    import torch

    torch.set_num_threads(THREADS)
    embedder = Embedder(results.options.model, device="cpu", precision="fp32")
    repeats = repeats_of(results.options)
    with corpus.open("rb") as lines:
        first = list(islice(lines, WARM_UP))
        count = len(first) + sum(1 for _ in lines)
    few = scratch / "few.jsonl"
    few.write_bytes(b"".join(first))
    seen: set[str] = set()

    def build(runner: RayRunner | None) -> None:
        seen.add(digest(built(corpus, scratch / "index", embedder, runner)))

    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    with RayRunner(workers=1, cpus=1) as one, RayRunner(workers=2, cpus=1) as two:
        rounds: list[tuple[str, RayRunner, RayRunner | None]] = [
            ("one_worker_against_plain", one, None),
            ("two_workers_against_one", two, one),
        ]
        for name, ours, peer in rounds:
            for runner in (ours, peer):  # starts the workers
                built(few, scratch / "index", embedder, runner)
            figure = compare(
                partial(rate, count, partial(build, ours)),
                partial(rate, count, partial(build, peer)),
                unit="docs/s",
                repeats=repeats,
                warm_up=False,
            )
            results.add(name, figure)
    ray.shutdown()
    results.add("different_vectors", Figure(len(seen) - 1, "builds"))


def built(corpus: Path, out: Path, embedder: TextEmbedder, runner: RayRunner | None) -> Index:
    """Build an index in the place of the one before."""
    shutil.rmtree(out, ignore_errors=True)
    return Index.build(corpus, out=out, model=embedder, on_truncate="warn", runner=runner)


def digest(index: Index) -> str:
    """Hash all vectors and ids."""
    rows = index.state.live_rows()
    ids = "\n".join(index.state.doc_ids(rows))
    return hashlib.sha256(index.state.vectors(rows).tobytes() + ids.encode()).hexdigest()


def limit_of_the_writer(results: Results, scratch: Path, count: int) -> None:
    """Measure a plain build with the hashing embedder."""
    corpus = write_corpus(scratch / "many.jsonl", many_documents(count))
    per_s = rate(count, lambda: Index.build(corpus, out=scratch / "many", model="hashing"))
    results.add(f"reading_and_writing_{count}", Figure(per_s, "docs/s"))


if __name__ == "__main__":
    main()
