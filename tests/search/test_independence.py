"""A score depends on the query and the document alone; pages are parts of one long result.

Random programs on small indexes. `FAULT_SCALE=full` runs 20,000 of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.index import Index
from sbert_search.index.settings import LexicalSettings
from sbert_search.records import Hit
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import Boost, Fusion
from tests.faults import FULL

WORDS = ("mill", "river", "wheel", "stone", "water", "flour", "bread", "salt", "sea", "wind")
N_INDEXES, N_PROGRAMS = (100, 200) if FULL else (6, 15)


def text_of(rng: random.Random, most: int = 9) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


def rows_of(rng: random.Random, n: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"_id": str(first + i), "title": text_of(rng, 2) if i % 3 else "", "text": text_of(rng),
         "part": rng.randrange(4), "views": rng.choice([0, 5, 70, None])}
        for i in range(n)
    ]  # fmt: skip


def given_vectors(seed: int, rng: random.Random) -> Index:
    """An index of vectors of 4 numbers, of any metric, partly equal and partly zero."""
    rows = rows_of(rng, rng.randint(1, 60))
    random_state = np.random.default_rng(seed)
    vectors = random_state.integers(-3, 4, (len(rows), 4)).astype(np.float32)
    metric: Any = rng.choice(["cosine", "dot", "euclidean"])
    if metric == "cosine":
        vectors += ~vectors.any(axis=1, keepdims=True)
    dtype: Any = rng.choice(["float32", "float16"])
    return Index.build(rows, vectors=vectors, metric=metric, dtype=dtype)


def split_texts(seed: int, rng: random.Random) -> Index:
    """An index of a model, of several segments, whose documents have several passages."""
    model = HashingEmbedder(16)
    index = Index.build(
        rows_of(rng, rng.randint(2, 40)), model=model, on_truncate="chunk", chunk_tokens=5,
        lexical=LexicalSettings(title_weight=rng.choice([1, 2, 4])),
    )  # fmt: skip
    index.upsert(rows_of(rng, rng.randint(1, 20), rng.randint(0, 30)), model=model)
    return index


def fusion_of(rng: random.Random, n_docs: int) -> Fusion:
    depth = rng.choice([1, 2, 5, 10, n_docs, 1000])
    return Fusion(depth=depth, dense_weight=rng.choice([0.0, 0.2, 0.5, 0.7, 1.0]))


def is_candidate(hit: Hit, fusion: Fusion) -> bool:
    """Whether a stage that has a weight ranks the document among its first ``depth``."""
    weights = {"dense": fusion.dense_weight, "lexical": 1 - fusion.dense_weight}
    ranks = [hit.stages[name].rank for name in weights if weights[name] and name in hit.stages]
    return any(rank is not None and rank <= fusion.depth for rank in ranks)


def assert_same(first: Sequence[Hit], second: Sequence[Hit], fusion: Fusion) -> None:
    """Documents that are candidates of both results have one order and equal scores."""
    both = (first, second)
    kept = [{h.doc_id: h.score for h in hits if is_candidate(h, fusion)} for hits in both]
    assert [i for i in kept[0] if i in kept[1]] == [i for i in kept[1] if i in kept[0]] or (
        _only_ties(kept[0], kept[1])
    )
    assert {i: s for i, s in kept[0].items() if i in kept[1]} == {
        i: s for i, s in kept[1].items() if i in kept[0]
    }


def _only_ties(first: dict[str, float], second: dict[str, float]) -> bool:
    """Equal scores are ordered by ranks, which depend on the other documents."""
    return [first[i] for i in first if i in second] == [second[i] for i in second if i in first]


@pytest.mark.parametrize("seed", range(N_INDEXES))
@pytest.mark.parametrize("make", [given_vectors, split_texts])
def test_filters_pages_and_other_documents_change_no_score(make: Any, seed: int) -> None:
    rng = random.Random(seed)
    index = make(seed, rng)
    engine = SearchEngine(index, HashingEmbedder(16) if make is split_texts else None)
    for _ in range(N_PROGRAMS // 2):
        vector = np.array([rng.choice([-2.0, -1.0, 0.5, 3.0]) for _ in range(4)])
        query = text_of(rng, 4)
        fusion = fusion_of(rng, len(index))
        options: dict[str, Any] = {"mode": "hybrid", "fusion": fusion, "fuzzy": rng.choice([0, 1])}
        options["vector"] = vector if make is given_vectors else None
        every = engine.search(query, 10_000, **options)
        where = rng.choice(["part < 3", "part = 1", "views > 0", "part IN (0, 2)", None])
        filtered = engine.search(query, 10_000, where=where, **options)
        assert_same(every, filtered, fusion)
        k, offset = rng.randint(1, 30), rng.randint(0, 30)
        assert list(engine.search(query, k, offset=offset, **options)) == every[offset:][:k]
        if fusion.dense_weight == 0:
            matched = ["lexical" in hit.stages for hit in every]
            assert matched == sorted(matched, reverse=True)


@pytest.mark.parametrize("seed", range(20 if FULL else 4))
def test_another_document_in_place_of_a_deleted_one_changes_no_score(seed: int) -> None:
    """It has the same words, so that the statistics of BM25 stay, and another vector."""
    rng = random.Random(seed)
    rows = rows_of(rng, 30)
    random_state = np.random.default_rng(seed)
    vectors = random_state.standard_normal((30, 4)).astype(np.float32)
    index = Index.build(rows, vectors=vectors)
    engine = SearchEngine(index)
    for step in range(10):
        query, vector = text_of(rng, 3), random_state.standard_normal(4)
        fusion = fusion_of(rng, 30)
        before = engine.search(query, 100, vector=vector, mode="hybrid", fusion=fusion)
        gone = rng.randrange(len(rows))
        index.delete([rows[gone]["_id"]])
        rows[gone] = {**rows[gone], "_id": f"new{step}"}
        index.add([rows[gone]], vectors=random_state.standard_normal((1, 4)).astype(np.float32))
        after = engine.search(query, 100, vector=vector, mode="hybrid", fusion=fusion)
        assert_same(before, after, fusion)


class Lengths:
    """A reranker that knows nothing of the query."""

    def predict(self, pairs: list[tuple[str, str]], /) -> list[float]:
        return [len(text) % 7 / 7 for _, text in pairs]


MIXED = Fusion(rerank_weight=0.5, score_range=(0, 1))
OPTIONS: dict[str, dict[str, Any]] = {
    "dense": {"mode": "dense"},
    "lexical": {"mode": "lexical"},
    "hybrid": {"mode": "hybrid"},
    "filter": {"where": "part < 3"},
    "words": {"fusion": Fusion(dense_weight=0.0)},
    "ranks": {"fusion": Fusion(method="rrf", score_range=(0, 1))},
    "shallow": {"fusion": Fusion(depth=7)},
    "mixed": {"fusion": MIXED},
    "boost": {"boost": Boost("views", 0.05)},
    "diversity": {"diversity": 0.4},
    "groups": {"group_by": "part"},
    "large groups": {"group_by": "views", "group_size": 3},
    "passages": {"group": False},
    "fuzzy": {"fuzzy": 1},
    "least": {"min_score": 0.2},
    "few": {"rerank_depth": 20},
    "whole": {"full_text": True},
    "plain": {"syntax": "plain"},
}


@pytest.fixture(scope="module")
def many() -> Index:
    rng, model = random.Random(1), HashingEmbedder(16)
    rows = rows_of(rng, 330)
    index = Index.build(rows[:200], model=model, on_truncate="chunk", chunk_tokens=6)
    index.add(rows[200:], model=model)
    return index


@pytest.mark.thorough
@pytest.mark.parametrize("pair", list(combinations(OPTIONS, 2)), ids=" and ".join)
@pytest.mark.parametrize("reranks", [False, True])
def test_joined_pages_are_the_long_result(
    many: Index, pair: tuple[str, str], reranks: bool
) -> None:
    first, second = (OPTIONS[name] for name in pair)
    if first.keys() & second.keys() or ({"group", "group_by"} <= first.keys() | second.keys()):
        return  # two values of one option, or options that exclude each other
    engine = SearchEngine(many, HashingEmbedder(16), Lengths() if reranks else None)
    options: dict[str, Any] = {**first, **second}
    query = "river mill salt"
    size = random.Random(str(pair)).choice([45, 100, 170])
    every = engine.search(query, 10_000, **options)
    joined: list[Hit] = []
    for offset in range(0, 10_000, size):
        page = engine.search(query, size, offset=offset, **options)
        joined += page
        if not page:
            break
    assert joined == list(every)
    ids = [(hit.doc_id, hit.chunk) for hit in joined]
    assert len(set(ids)) == len(ids)
    if not {"min_score", "where", "group"} & options.keys() and options.get("mode") != "lexical":
        assert len(joined) == (len(many) if "group_by" not in options else len(joined))
