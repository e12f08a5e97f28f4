"""Random programs of updates: a sharded index answers as one index of the same documents."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults import FULL, keep_result
from tests.index.shards.programs import Program

PROGRAMS = 2000 if FULL else 50
STEPS = 6  # of a program


@pytest.mark.thorough
def test_a_sharded_index_answers_as_one_index_after_any_updates(fast_path: Path) -> None:
    for seed in range(PROGRAMS):
        folder = fast_path / f"p{seed}"
        folder.mkdir()
        Program(seed, folder).run(STEPS)
        shutil.rmtree(folder)
    keep_result(
        "shard_programs",
        {"programs": PROGRAMS, "steps_of_a_program": STEPS, "answers_that_differ": 0},
    )
