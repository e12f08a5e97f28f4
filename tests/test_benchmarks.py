"""The benchmark scripts: that they start, take turns and write the promised record."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import ROOT, environment

BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("bench_*.py"))

PROGRAM = """
from common import Figure, Results, arguments, compare

turns = []
def ours(): turns.append("ours"); return 4.0
def peer(): turns.append("peer"); return 2.0

results = Results(arguments("").parse_args())
results.add("speed", compare(ours, peer, unit="x/s", repeats=2))
results.add("size", Figure(3.0, "MiB"))
results.write()
assert turns == ["ours", "peer"] * 3, turns
"""


def run(*arguments: object) -> str:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=BENCHMARKS, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_explains_itself(script: Path) -> None:
    assert "--quick" in run(script, "--help")


def test_contestants_take_turns_and_the_record_has_its_promised_form(tmp_path: Path) -> None:
    out = tmp_path / "results" / "bench.json"
    table = run("-c", PROGRAM, "--out", out, "--seed", "7")
    assert "ratio 2.000 (2.000 to 2.000)" in table
    record = json.loads(out.read_text())
    assert record["figures"] == {
        "speed": {"value": 4.0, "unit": "x/s", "peer": 2.0, "ratio": 2.0},
        "size": {"value": 3.0, "unit": "MiB", "peer": None, "ratio": None},
    }
    assert record["repeats"]["speed"] == {"ours": [4.0, 4.0], "peer": [2.0, 2.0]}
    assert record["seed"] == 7
    assert {"machine", "commit", "libraries", "command"} <= record.keys()
