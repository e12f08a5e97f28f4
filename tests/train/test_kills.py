"""Random SIGKILLs: what goes on ends in the weights of a run that was never killed."""

import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults import FULL, keep_result
from tests.train.killed_child import SETTINGS, STEPS
from tests.train.small import lasting_lines, unlike

ROOT = Path(__file__).parents[2]
KILLS_OF_A_RUN = 5  # of 40 steps of 4 micro-batches
SEED = 0
CHILD = "tests.train.killed_child"


def train(out: Path, kind: str, kill_after: float | None = None, module: str = CHILD) -> bool:
    """Run the child, killing it after so many micro-batches; tell whether it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", module, str(out), kind],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    assert child.stdout is not None
    with child.stdout as output:
        if kill_after is None:
            output.read()
        else:
            output.read(int(kill_after))
            time.sleep(kill_after % 1 * 0.05)  # anywhere in a step, or in a checkpoint
            child.kill()
    return child.wait() != 0


def kill_runs(
    kind: str,
    kills: int,
    folder: Path,
    draw: random.Random,
    module: str = CHILD,
    latest: int = 60,
) -> list[dict[str, Any]]:
    """Kill runs until there were enough kills, let each one end, and compare it with one in peace.

    A kill comes within the first ``latest`` micro-batches after a start.

    Returns:
        For each kill the step of the newest checkpoint it left, and whether one was half written.
    """
    peace, done = folder / kind, list[dict[str, Any]]()
    assert not train(peace, kind, None, module)
    for number in itertools.count():
        if len(done) == kills:
            break
        out = folder / f"{kind}-{number}"
        for _ in range(min(KILLS_OF_A_RUN, kills - len(done))):
            if not train(out, kind, draw.uniform(1, latest), module):
                break  # it was through before the kill
            left = [int(path.name[5:]) for path in out.glob("ckpt-????????")]
            torn = bool(list(out.glob("*.tmp")))
            done.append({"kind": kind, "checkpoint": max(left, default=0), "half_written": torn})
        train(out, kind, None, module)
        assert not unlike(peace, out)
        assert sum(line["kind"] == "step" for line in lasting_lines(out)) == STEPS
    return done


@pytest.mark.thorough
def test_killed_runs_end_in_the_same_bits(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    tasks = (("token", 10), ("pair", 10), ("pretrain", 10)) if FULL else (("pretrain", 3),)
    killed = [kill for kind, kills in tasks for kill in kill_runs(kind, kills, tmp_path, draw)]
    assert len(killed) == sum(kills for _, kills in tasks)
    figures = {"kills": len(killed), "ended_otherwise": 0, "each": killed}
    keep_result("training_kills", {**figures, "settings": SETTINGS, "seed": SEED})
