"""Children forked while threads search: they search, or say by name why they cannot."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sbert_search.base.threads import Turns
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import IndexStoreError
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.index import Index
from sbert_search.index.settings import IndexSpec
from sbert_search.index.upkeep import merge_policy
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchMode
from sbert_search.search.results import Hits
from tests.search.corpus import small_index

CHILDREN = 15
PATIENCE_S = 60

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    rng = np.random.default_rng(0)
    rows = [
        {"_id": str(i), "text": " ".join(f"w{j}" for j in rng.integers(0, 500, 8))}
        for i in range(3_000)
    ]
    return small_index(tmp_path_factory.mktemp("forks"), rows)


def forked(work: Callable[[], int]) -> int:
    """Fork a child that ends with the code that some work gives, 99 for an exception."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return child


def codes(children: list[int]) -> list[int]:
    """Wait for children; one that hangs is killed, and its code is -9."""
    ended: dict[int, int] = {}
    end = time.monotonic() + PATIENCE_S
    while len(ended) < len(children):
        for child in children:
            if child in ended:
                continue
            if time.monotonic() > end:
                os.kill(child, 9)
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                ended[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return [ended[child] for child in children]


@contextmanager
def searching(*works: Callable[[], object]) -> Iterator[None]:
    """Have threads do something over and over."""
    stop = threading.Event()

    def loop(work: Callable[[], object]) -> None:
        while not stop.is_set():
            work()

    threads = [threading.Thread(target=loop, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_children_forked_while_threads_search_search_too(index: Index, mode: SearchMode) -> None:
    engine = SearchEngine(index, HashingEmbedder())
    many = [f"w{i} w{i + 1} w{i + 2}" for i in range(20)]

    def one() -> Hits:
        return engine.search("w1 w2 w3", mode=mode)

    def batch() -> list[Hits]:
        return engine.search_many(many, mode=mode)

    expected = one(), batch()

    def work() -> int:
        return 0 if (one(), batch()) == expected else 1

    with searching(one, one, batch, batch):
        children = [forked(work) for _ in range(CHILDREN)]
        assert codes(children) == [0] * CHILDREN
        assert one() == expected[0]


@pytest.mark.thorough
@pytest.mark.parametrize("asked", [1, 3])
def test_children_of_a_process_that_searched_by_faiss_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    """FAISS's own threads are not there: a lone query and several are refused alike."""
    monkeypatch.setattr(merge_policy, "MIN_ANN_ROWS", 500)
    rows = [{"_id": str(i), "text": f"w{i % 7} w{i}"} for i in range(1_000)]
    settings = BuildSettings(spec=IndexSpec(factory="HNSW16"))
    engine = SearchEngine(small_index(tmp_path, rows, settings=settings), HashingEmbedder())
    queries = ["w1 w2", "w5", "w6"][:asked]

    def search() -> object:
        return engine.search_many(queries)

    def work() -> int:
        with pytest.raises(IndexStoreError, match="which had loaded FAISS; the threads"):
            search()
        return 0

    search()
    with searching(search, search):
        assert codes([forked(work) for _ in range(CHILDREN)]) == [0] * CHILDREN


@pytest.mark.thorough
def test_a_fork_waits_for_turns_to_end() -> None:
    """Whatever a thread locks in its turn is free in a child."""
    turns, locked = Turns(2), threading.Lock()

    def hold() -> None:
        with turns, locked:
            time.sleep(0.002)

    def work() -> int:
        return 0 if locked.acquire(blocking=False) else 1

    with searching(hold, hold, hold):
        assert codes([forked(work) for _ in range(CHILDREN)]) == [0] * CHILDREN


def test_a_child_forked_in_a_turn_has_that_turn_and_the_others_are_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other turn does not end, and a fork does not wait for ever."""
    monkeypatch.setattr("sbert_search.base.threads.FORK_WAIT_S", 0.1)
    turns = Turns(2)
    leave = threading.Event()

    def hold() -> None:
        with turns:
            leave.wait(PATIENCE_S)

    def work() -> int:
        with turns:  # its own, again
            taken: list[int] = []

            def take() -> None:
                with turns:
                    taken.append(1)

            thread = threading.Thread(target=take)
            thread.start()
            thread.join(PATIENCE_S)
        return 0 if taken else 1

    thread = threading.Thread(target=hold)
    thread.start()
    with turns:
        assert codes([forked(work)]) == [0]
        assert codes([forked(work)]) == [0]
    leave.set()
    thread.join()
