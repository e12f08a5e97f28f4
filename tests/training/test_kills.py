"""Random SIGKILLs: what goes on ends in the weights of a run that was never killed."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sbert_search.runtime.provenance import code, library_versions, machine
from tests.training.killed_child import SETTINGS, STEPS
from tests.training.small import lasting_lines, unlike

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "tests/results/training_kills.json"
KILLS_OF_A_RUN = 5
SEED = 0


def train(out: Path, kind: str, kill_after_s: float | None = None) -> bool:
    """Run the child, killing it some time after it has begun; tell whether it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.training.killed_child", str(out), kind],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    assert child.stdout is not None
    with child.stdout as output:
        assert output.readline() == b"ready\n"
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            child.kill()
    return child.wait() != 0


def kill_runs(kind: str, kills: int, folder: Path, draw: random.Random) -> list[dict[str, Any]]:
    """Kill runs until there were enough kills, let each one end, and compare it with one in peace.

    Returns:
        For each kill the step of the newest checkpoint it left, and whether one was half written.
    """
    peace, done = folder / kind, list[dict[str, Any]]()
    started = time.perf_counter()
    assert not train(peace, kind)
    longest_s = (time.perf_counter() - started) / 3
    while len(done) < kills:
        out = folder / f"{kind}-{len(done)}"
        for _ in range(min(KILLS_OF_A_RUN, kills - len(done))):
            if not train(out, kind, draw.uniform(0, longest_s)):
                break  # it was through before the kill
            left = [int(path.name[5:]) for path in out.glob("ckpt-????????")]
            torn = bool(list(out.glob("*.tmp")))
            done.append({"kind": kind, "checkpoint": max(left, default=0), "half_written": torn})
        train(out, kind)
        assert not unlike(peace, out)
        assert len(lasting_lines(out)) == STEPS
    return done


def test_killed_runs_end_in_the_same_bits(tmp_path: Path) -> None:
    full, draw = os.environ.get("FAULT_SCALE", "ci") == "full", random.Random(SEED)
    if not full:
        assert len(kill_runs("token", 3, tmp_path, draw)) == 3
        return
    killed = [kill for kind in ("token", "pair") for kill in kill_runs(kind, 10, tmp_path, draw)]
    record = {
        "kills": len(killed),
        "runs_that_ended_differently": 0,
        "each": killed,
        "settings": SETTINGS,
        "seed": SEED,
        "command": "FAULT_SCALE=full python -m pytest tests/training/test_kills.py",
        "machine": machine(),
        "libraries": library_versions(("torch", "numpy")),
        **code(),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
