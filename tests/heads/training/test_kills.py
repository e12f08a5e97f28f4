"""Random SIGKILLs in the training of task heads: the resumed runs end in the same bits."""

import random
from pathlib import Path

import pytest

from tests.faults import FULL
from tests.heads.training.killed_child import SETTINGS, STEPS
from tests.train.test_kills import kill_runs

CHILD = "tests.heads.training.killed_child"


@pytest.mark.thorough
def test_killed_runs_end_in_the_same_bits(tmp_path: Path) -> None:
    draw = random.Random(0)
    kinds = [*SETTINGS] if FULL else ["tag"]
    kills = 5 if FULL else 1
    killed = [
        kill
        for kind in kinds
        for kill in kill_runs(kind, kills, tmp_path, draw, CHILD, latest=STEPS // 2)
    ]
    assert len(killed) == kills * len(kinds)
