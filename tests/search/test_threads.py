"""Searches awaited by coroutines."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from sbert_search.base.threads import Threads
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import QueryError
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from tests.search.corpus import small_index


class Gated(HashingEmbedder):
    """Waits inside every search until its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.begun = threading.Event(), threading.Semaphore(0)
        self.gate.set()
        self.queries: list[str] = []

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        self.queries += tokens.texts
        self.begun.release()
        assert self.gate.wait(60)
        return super().encode_tokens(tokens)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return small_index(tmp_path)


@pytest.mark.thorough
def test_many_tasks_get_the_answers_of_searches_one_by_one(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder())
    texts = [f"{word} {n}" for n in range(50) for word in ("river", "dough", "germs", "words")]

    async def ask() -> list[object]:
        single = [engine.asearch(text, 3, highlight=True) for text in texts]
        many = [engine.asearch_many(texts[:9], 2, mode="lexical") for _ in range(5)]
        return list(await asyncio.gather(*single, *many))

    answers = asyncio.run(ask())
    assert answers[: len(texts)] == [engine.search(text, 3, highlight=True) for text in texts]
    assert answers[len(texts) :] == [engine.search_many(texts[:9], 2, mode="lexical")] * 5


def test_an_error_reaches_the_task_that_awaits_it(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder())

    async def ask() -> list[object]:
        tasks = engine.asearch(" "), engine.asearch("river", 1)
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    error, hits = asyncio.run(ask())
    assert isinstance(error, QueryError)
    assert hits == engine.search("river", 1)


def test_cancelled_searches_leave_an_engine_that_answers(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbert_search.search.engine.usable_cores", lambda: 1)
    embedder = Gated()
    engine = SearchEngine(index, embedder)
    embedder.begun, embedder.queries = threading.Semaphore(0), []  # forget the check texts
    embedder.gate.clear()

    async def ask() -> None:
        running, waiting = (asyncio.create_task(engine.asearch(q)) for q in ("river", "dough"))
        while not embedder.begun.acquire(blocking=False):
            await asyncio.sleep(0.001)
        for task in (running, waiting):
            task.cancel()
        for task in (running, waiting):
            with pytest.raises(asyncio.CancelledError):
                await task
        embedder.gate.set()
        hits = await engine.asearch("germs", 1, mode="dense")
        assert hits == engine.search("germs", 1, mode="dense")

    asyncio.run(ask())
    assert "river" in embedder.queries
    assert "dough" not in embedder.queries


def test_a_coroutine_sees_its_context_in_the_thread() -> None:
    from contextvars import ContextVar

    name = ContextVar("name", default="none")

    async def ask() -> str:
        name.set("mine")
        return await Threads(1).run(name.get)

    assert asyncio.run(ask()) == "mine"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder())
    asyncio.run(engine.asearch("river"))
    child = os.fork()
    if child == 0:
        hits = asyncio.run(asyncio.wait_for(engine.asearch("river", 1), 30))
        os._exit(0 if hits[0].doc_id == "mill" else 1)
    assert os.waitpid(child, 0)[1] == 0
