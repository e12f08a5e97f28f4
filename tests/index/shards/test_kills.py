"""Killed at any moment of an update over shards: what was acknowledged is there, none is half."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.faults import FULL, keep_result
from tests.index.faults.model import applied, assert_holds, contents
from tests.index.faults.test_kills import LONGEST_LIFE_S, RESTART_EVERY, one_life, read_line
from tests.index.faults.victim import operation
from tests.index.shards.sharded import new_sharded

KILLS = 2000 if FULL else 10
SEED = 20_261


@pytest.mark.thorough
def test_no_acknowledged_update_of_several_shards_is_lost_or_half_there(fast_path: Path) -> None:
    rng = random.Random(SEED)
    kills = acknowledged = landed = 0
    with subprocess.Popen(
        [sys.executable, "-m", "tests.index.faults.victim"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    ) as victim:
        read_line(victim)
        while kills < KILLS or acknowledged <= KILLS:  # a slow machine acknowledges few in a life
            path = fast_path / f"i{kills // RESTART_EVERY}"
            if kills % RESTART_EVERY == 0:
                model, number = new_sharded(path), 0
            acks = one_life(victim, path, number, rng.uniform(0, LONGEST_LIFE_S))
            kills, acknowledged = kills + 1, acknowledged + acks
            for _ in range(acks):
                model = applied(model, operation(SEED, number, model))
                number += 1
            if contents(IndexStore.open(path).snapshot) != model:
                model = applied(model, operation(SEED, number, model))
                number, landed = number + 1, landed + 1
            assert_holds(IndexStore.open(path).snapshot, model)
            assert check(path).problems == ()
        assert victim.stdin is not None
        victim.stdin.close()
    keep_result(
        "shard_kills",
        {
            "kills": kills,
            "seed": SEED,
            "commits_acknowledged": acknowledged,
            "unacknowledged_commits_that_landed_whole": landed,
            "acknowledged_commits_lost": 0,
            "commits_in_some_shards_only": 0,
        },
    )
