"""Indexes, engines and models are sent to other processes by name, and opened again there."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from sbert_search.search.rerankers import Reranker
from tests.models.tiny import TEXTS, tiny_bi_encoder, tiny_cross_encoder
from tests.search.corpus import small_index


def sent(value: Any) -> Any:
    """What another process receives."""
    return ForkingPickler.loads(ForkingPickler.dumps(value))


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return small_index(tmp_path)


def test_an_index_is_sent_by_its_path(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(index.path.parent)
    relative = Index.open(index.path.name, wait_s=2.5)
    message = ForkingPickler.dumps(relative)
    assert len(message) < 1000
    monkeypatch.chdir("/")
    received = ForkingPickler.loads(message)
    assert received.path == index.path
    assert received.store.wait_s == 2.5
    received.delete(["mill"])
    assert len(sent(index)) == len(index) - 1  # the state is that of the moment of opening


def test_an_engine_is_sent_with_its_options(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder(), allow_inexact=True)
    engine.search("dough")
    received = sent(engine)
    assert received.search("water", k=3, mode="hybrid") == engine.search("water", 3, mode="hybrid")
    named = SearchEngine(index, "hashing", device="cpu")
    assert sent(named).search("water") == named.search("water")


@pytest.mark.thorough
def test_a_spawned_process_searches(index: Index) -> None:
    engine = SearchEngine(index)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pid, hits = pool.apply(_search, (engine, "flour"))
    assert pid != os.getpid()
    assert hits == engine.search("flour")


def _search(engine: SearchEngine, query: str) -> tuple[int, Any]:
    return os.getpid(), engine.search(query)


@pytest.mark.usefixtures("one_thread")
def test_models_are_sent_with_their_options(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "bi")
    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "cross")
    embedder = Embedder(tmp_path / "bi", device="cpu", precision="fp32", truncate_dim=8)
    received = sent(embedder)
    assert received.dim == 8
    assert received.identity == embedder.identity
    np.testing.assert_array_equal(received.encode(TEXTS), embedder.encode(TEXTS))
    reranker = Reranker(tmp_path / "cross", device="cpu", precision="fp32")
    pairs = [("the cat", text) for text in TEXTS]
    np.testing.assert_array_equal(sent(reranker).predict(pairs), reranker.predict(pairs))
