"""The cost of reranking in a server, and what happens if the client hangs up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchOptions
from sbert_search.search.rerankers import Pair, Reranker
from sbert_search.serve.access import ServerLimits
from sbert_search.serve.indexes import ServedIndex
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.queue import Work
from sbert_search.serve.reranker import ServedReranker
from sbert_search.text.tokens.tokenizer import EncodedPairs

QUERY = "dough wheel vaccine"


def served(built: Path, reranker: Reranker) -> tuple[ServedIndex, ServedReranker]:
    metrics, index = Metrics(), Index.open(built)
    behind_queue = ServedReranker("cross", reranker, ServerLimits(), metrics)
    reranking = SearchEngine(index, reranker=behind_queue)
    return ServedIndex("i", index, None, SearchEngine(index), reranking, metrics), behind_queue


@pytest.fixture
def reranker(models: Path) -> Reranker:
    return Reranker(models / "cross", precision="fp32", batch_tokens=1)  # one pair a batch


@pytest.mark.thorough
def test_reranking_counts_in_the_work_of_a_request(built: Path, reranker: Reranker) -> None:
    index, behind_queue = served(built, reranker)
    work = Work()
    options = SearchOptions(mode="lexical")
    try:
        [hits] = asyncio.run(index.search([QUERY], options, work, reranks=True))
    finally:
        index.close()
        behind_queue.queue.close()
    texts = [index.index.get(hit.doc_id) for hit in hits]
    pairs = [(QUERY, text.full_text) for text in texts if text]
    lengths = reranker.tokenizer.encode_pairs(pairs).lengths
    assert (work.texts, work.tokens) == (3, lengths.sum())
    assert work.inference_s > 0


@pytest.mark.thorough
def test_pairs_of_a_client_that_hung_up_are_not_scored(
    built: Path, reranker: Reranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[Pair] = []
    begun, resumed = threading.Event(), threading.Event()

    def score(pairs: Sequence[Pair], encoded: EncodedPairs) -> NDArray[np.float32]:
        scored.extend(pairs)
        begun.set()
        assert resumed.wait(30)
        return np.zeros(len(pairs), np.float32)

    async def hang_up() -> None:
        asking = asyncio.create_task(
            index.search([QUERY], SearchOptions(mode="lexical"), Work(), reranks=True)
        )
        assert await asyncio.to_thread(begun.wait, 30)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert behind_queue.queue.waiting_tokens == 0
        resumed.set()

    monkeypatch.setattr(reranker, "predict_tokens", score)
    index, behind_queue = served(built, reranker)
    try:
        asyncio.run(hang_up())
    finally:
        resumed.set()
        index.close()
        behind_queue.queue.close()
    assert len(scored) == 1
