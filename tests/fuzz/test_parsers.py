"""Damaged bytes bring out named errors: nothing uncaught, no signal, no flood of memory.

`FAULT_SCALE=full` tries a hundred thousand of each parser.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.process import ROOT, environment
from tests.faults import FULL, keep_result
from tests.fuzz.parsers import PARSERS

COUNT = 100_000 if FULL else 100
OF_PARQUET = 100_000 if FULL else 2_000  # its reader is native code, which few inputs bring to fall
SEED = 11
MAX_RSS_MIB = 500


@pytest.mark.thorough
def test_no_parser_fails_otherwise_than_by_name(fast_path: Path) -> None:
    others = [name for name in PARSERS if name != "parquet"]
    lots = [["parquet"], *([[name] for name in others] if FULL else [others[0::2], others[1::2]])]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda names: run_child(fast_path, names), lots))
    told = {report.pop("parser"): report for reports in done for report in reports}
    assert told.keys() == PARSERS.keys()
    for report in told.values():
        assert report["rss_mib"] < MAX_RSS_MIB
    keep_result(
        "parser_mutations",
        {
            "inputs": {name: report["inputs"] for name, report in told.items()},
            "refused": {name: report["refused"] for name, report in told.items()},
            "longest_s": max(report["longest_s"] for report in told.values()),
            "largest_rss_mib": max(report["rss_mib"] for report in told.values()),
            "uncaught": 0,
            "signals": 0,
            "seed": SEED,
        },
    )


def run_child(folder: Path, names: list[str]) -> list[dict[str, int | float]]:
    """Damage the inputs of some parsers in a process of their own."""
    own = folder / names[0]
    own.mkdir()
    count = str(OF_PARQUET if names == ["parquet"] else COUNT)
    child = [sys.executable, "-m", "tests.fuzz.child", count, str(SEED), str(own), *names]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        child, cwd=ROOT, env=environment(one_thread), capture_output=True, text=True
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-6000:])
    return [json.loads(line) for line in done.stdout.splitlines()]
