"""Tune an index on an idle machine and beside four processes that compute, within one budget.

    python benchmarks/bench_tune.py [--quick] [--work FOLDER] [--out F.json]

The vectors are those of `bench_index.py`: 50,000 and 200,000 of 384 dimensions in clusters
(--quick: 50,000). A tuning may take five minutes. The figures are its seconds (peer: those of the
budget), the recall of the choice on held-out queries, and how many kinds of index were compared.
The kinds that were chosen are printed.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

from common import Figure, Results, arguments
from vectors import Clusters, write_index

from sbert_search.index.store import IndexStore
from sbert_search.index.tuning.settings import TuneSettings
from sbert_search.index.tuning.trials import how
from sbert_search.index.tuning.tune import tune

SIZES, QUICK_SIZES = (50_000, 200_000), (50_000,)
MINUTES = 5.0
BURNING = 4


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, help="keep the indexes in this folder")
    options = parser.parse_args()
    results = Results(options)
    with tempfile.TemporaryDirectory(prefix="bench-tune-") as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        for size in QUICK_SIZES if options.quick else SIZES:
            path = work / f"drawn_{size}"
            if not path.exists():
                write_index(path, Clusters.of(options.seed, size), size)
            measured(results, f"tune_{size}_idle", path, 0)
            measured(results, f"tune_{size}_busy", path, BURNING)


def measured(results: Results, name: str, path: Path, burning: int) -> None:
    """Tune an index beside processes that compute."""
    workers = [multiprocessing.Process(target=burn, daemon=True) for _ in range(burning)]
    for worker in workers:
        worker.start()
    settings = TuneSettings(max_minutes=MINUTES, seed=results.options.seed)
    report = tune(IndexStore.open(path), settings)
    for worker in workers:
        worker.terminate()
        worker.join()
    assert report.tuning is not None
    chosen = report.tuning.verified
    allowed = 60 * MINUTES
    print(f"{name}: {how(chosen.spec)}", *report.tuning.others, sep="\n")
    results.add(f"{name}_seconds", Figure(report.seconds, "s", allowed, report.seconds / allowed))
    results.add(f"{name}_recall", Figure(chosen.recall, "recall"))
    compared = [family for family in report.measured if not family.skipped]
    results.add(f"{name}_kinds", Figure(len(compared), "kinds"))


def burn() -> None:
    """Compute until the process is terminated."""
    while True:
        sum(range(1_000_000))


if __name__ == "__main__":
    main()
