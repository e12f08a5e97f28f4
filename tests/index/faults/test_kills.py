"""Killed at any moment: what was acknowledged is there, the rest whole or not at all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.faults import FULL, keep_result
from tests.index.faults.model import Model, applied, assert_holds, contents, new_index
from tests.index.faults.victim import operation

KILLS = 5000 if FULL else 40
SEED = 20_261
RESTART_EVERY = 20  # kills after which a new index is begun, so that indexes stay small
LONGEST_LIFE_S = 0.2


@pytest.mark.thorough
def test_no_acknowledged_commit_is_lost_and_no_other_is_half_there(fast_path: Path) -> None:
    rng = random.Random(SEED)
    killed: Counter[str] = Counter()
    acknowledged = landed = 0
    with subprocess.Popen(
        [sys.executable, "-m", "tests.index.faults.victim"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    ) as victim:
        read_line(victim)
        for kill in range(KILLS):
            path = fast_path / f"i{kill // RESTART_EVERY}"
            if kill % RESTART_EVERY == 0:
                model, number = new_index(path), 0
            acks = one_life(victim, path, number, rng.uniform(0, LONGEST_LIFE_S))
            acknowledged += acks
            for _ in range(acks):
                model = applied(model, operation(SEED, number, model))
                number += 1
            step = operation(SEED, number, model)
            killed[step.kind] += 1
            if contents(IndexStore.open(path).snapshot) != model:
                model, number, landed = applied(model, step), number + 1, landed + 1
            check_index(path, model)
        assert victim.stdin is not None
        victim.stdin.close()
    assert acknowledged > KILLS
    keep_result(
        "index_kills",
        {
            "kills": KILLS,
            "seed": SEED,
            "killed_during": killed,
            "commits_acknowledged": acknowledged,
            "unacknowledged_commits_that_landed_whole": landed,
            "acknowledged_commits_lost": 0,
            "unreadable_indexes": 0,
            "half_batches": 0,
        },
    )


def one_life(victim: subprocess.Popen[bytes], path: Path, number: int, life_s: float) -> int:
    """Start a child, kill it after a while, and return how many commits it acknowledged."""
    assert victim.stdin is not None
    victim.stdin.write(f"{path} {SEED} {number}\n".encode())
    line = read_line(victim)
    acks = line.count(b".")  # the child may be faster than the line with its id
    time.sleep(life_s)
    os.kill(int(line.replace(b".", b"")), signal.SIGKILL)
    return acks + read_line(victim).count(b".")


def read_line(victim: subprocess.Popen[bytes]) -> bytes:
    assert victim.stdout is not None
    line = victim.stdout.readline()
    assert line, "the victim's parent is gone"
    return line


def check_index(path: Path, model: Model) -> None:
    """Open, compare with the model, verify every byte; the lock is free."""
    assert_holds(IndexStore.open(path).snapshot, model)
    assert check(path).problems == ()
    with IndexStore.open(path).writer():
        pass
