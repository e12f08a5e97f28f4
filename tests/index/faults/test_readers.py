"""Readers beside a writer that replaces and compacts: every state they open is a whole one."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from sbert_search.index.store import IndexStore
from tests.faults import FULL, keep_result
from tests.index.faults.model import Operation, applied, apply, contents, new_index

SECONDS = 60.0 if FULL else 3.0
N_READERS = 3
GROUP = 5  # documents that are always replaced together
GROUPS = 8


def replaced(group: int, version: int) -> Operation:
    return Operation("put", tuple((f"{group}-{i}", version, 1 + i % 2) for i in range(GROUP)))


def read(
    path: Path, start: Barrier, stop: Event, counts: multiprocessing.Queue[tuple[int, int, str]]
) -> None:
    """Open the index again and again; tell how often, how many states were seen, and what broke."""
    opened, seen, problem = 0, set(), ""
    contents(IndexStore.open(path).snapshot)  # what is loaded once is loaded now
    start.wait()
    while not stop.is_set() and not problem:
        try:
            snapshot = IndexStore.open(path).snapshot
            found = contents(snapshot)
            texts = [{found[f"{g}-{i}"][0] for i in range(GROUP)} for g in range(GROUPS)]
            if len(found) != GROUP * GROUPS or any(len(versions) != 1 for versions in texts):
                problem = f"torn: {texts}"
        except Exception as error:
            problem = repr(error)
        opened += 1
        seen.add(snapshot.manifest.generation)
    counts.put((opened, len(seen), problem))


def test_readers_see_whole_states_while_a_writer_replaces_and_compacts(fast_path: Path) -> None:
    path = fast_path / "i"
    model = new_index(path, [replaced(group, 0) for group in range(GROUPS)])
    spawn = multiprocessing.get_context("spawn")
    start, stop, counts = spawn.Barrier(N_READERS + 1), spawn.Event(), spawn.Queue()
    arguments = (path, start, stop, counts)
    readers = [spawn.Process(target=read, args=arguments) for _ in range(N_READERS)]
    for reader in readers:
        reader.start()
    start.wait(timeout=120)
    commits, end = 0, time.monotonic() + SECONDS
    with IndexStore.open(path).writer() as writer:
        while time.monotonic() < end:
            commits += 1
            step = Operation("compact") if commits % 3 == 0 else replaced(commits % GROUPS, commits)
            apply(writer, step)
            model = applied(model, step)
    stop.set()
    results = [counts.get(timeout=60) for _ in readers]
    for reader in readers:
        reader.join()
    assert [problem for _, _, problem in results] == [""] * N_READERS
    assert all(seen > 1 for _, seen, _ in results)
    assert contents(IndexStore.open(path).snapshot) == model
    keep_result(
        "index_readers",
        {
            "seconds": SECONDS,
            "readers": N_READERS,
            "commits": commits,
            "opens": sum(opened for opened, _, _ in results),
            "torn_or_failed_opens": 0,
        },
    )
