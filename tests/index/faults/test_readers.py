"""Readers beside a writer that replaces and compacts: every state they open is a whole one."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import numpy as np
import pytest

from sbert_search.index.store import IndexStore
from tests.faults import FULL, keep_result
from tests.index.faults.model import Operation, applied, apply, contents, new_index

SECONDS = 60.0 if FULL else 3.0
N_READERS = 4
GROUP = 5  # documents that are always replaced together
GROUPS = 8


def replaced(group: int, version: int) -> Operation:
    return Operation("put", tuple((f"{group}-{i}", version, 1 + i % 2) for i in range(GROUP)))


@dataclass
class Told:
    """What a reader tells in the end: seconds of each reading, states seen, and what broke."""

    idle_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    problem: str = ""


def read(
    path: Path, start: Barrier, writing: Event, stop: Event, told: multiprocessing.Queue[Told]
) -> None:
    """Open the index again and again, first without a writer, then beside one."""
    mine = Told()
    contents(IndexStore.open(path).snapshot)  # what is loaded once is loaded now
    start.wait()
    while not stop.is_set() and not mine.problem:
        times, begun = mine.busy_s if writing.is_set() else mine.idle_s, time.perf_counter()
        try:
            snapshot = IndexStore.open(path).snapshot
            found = contents(snapshot)
            texts = [{found[f"{g}-{i}"][0] for i in range(GROUP)} for g in range(GROUPS)]
            if len(found) != GROUP * GROUPS or any(len(versions) != 1 for versions in texts):
                mine.problem = f"torn: {texts}"
            mine.seen.add(snapshot.manifest.generation)
        except Exception as error:
            mine.problem = repr(error)
        times.append(time.perf_counter() - begun)
    told.put(mine)


@pytest.mark.thorough
def test_readers_see_whole_states_while_a_writer_replaces_and_compacts(fast_path: Path) -> None:
    path = fast_path / "i"
    model = new_index(path, [replaced(group, 0) for group in range(GROUPS)])
    spawn = multiprocessing.get_context("spawn")
    start, writing, stop = spawn.Barrier(N_READERS + 1), spawn.Event(), spawn.Event()
    told: multiprocessing.Queue[Told] = spawn.Queue()
    arguments = (path, start, writing, stop, told)
    readers = [spawn.Process(target=read, args=arguments) for _ in range(N_READERS)]
    for reader in readers:
        reader.start()
    start.wait(timeout=120)
    time.sleep(SECONDS / 6)
    writing.set()
    commits, end = 0, time.monotonic() + SECONDS
    with IndexStore.open(path).writer() as writer:
        while time.monotonic() < end:
            commits += 1
            step = Operation("compact") if commits % 3 == 0 else replaced(commits % GROUPS, commits)
            apply(writer, step)
            model = applied(model, step)
    stop.set()
    results = [told.get(timeout=60) for _ in readers]
    for reader in readers:
        reader.join()
    assert [result.problem for result in results] == [""] * N_READERS
    assert all(len(result.seen) > 1 for result in results)
    assert contents(IndexStore.open(path).snapshot) == model
    idle = [s for result in results for s in result.idle_s]
    busy = [s for result in results for s in result.busy_s]
    keep_result(
        "index_readers",
        {
            "seconds": SECONDS,
            "readers": N_READERS,
            "commits": commits,
            "opens": len(idle) + len(busy),
            "torn_or_failed_opens": 0,
            "p99_idle_ms": round(1000 * float(np.percentile(idle, 99)), 1),
            "p99_beside_the_writer_ms": round(1000 * float(np.percentile(busy, 99)), 1),
        },
    )
