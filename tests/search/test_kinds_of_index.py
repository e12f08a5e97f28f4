"""Scores and pages of hybrid search hold for every kind of index, not only for the plain one."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search import Index, SearchEngine
from sbert_search.index.settings import LexicalSettings
from sbert_search.records import Hit
from sbert_search.search.options import Boost, Fusion
from tests.search.test_independence import Lengths, assert_same, rows_of, text_of

N_DOCS, DIM, MODEL = 120, 16, "hashing:16"
ROWS = rows_of(random.Random(1), N_DOCS)
CUT: dict[str, Any] = {"on_truncate": "chunk", "chunk_tokens": 5}


def _vectors(metric: Any) -> Callable[[Path], Index]:
    """An index of real numbers whose norms differ by orders of magnitude, so that sums round."""
    draw = np.random.default_rng(1)
    norms = draw.lognormal(0, 3, (N_DOCS, 1))
    vectors = (draw.standard_normal((N_DOCS, DIM)) * norms).astype(np.float32)
    return lambda out: Index.build(ROWS, out=out, vectors=vectors, metric=metric)


KINDS: dict[str, Callable[[Path], Index]] = {
    "dot": _vectors("dot"),
    "euclidean": _vectors("euclidean"),
    "float16": lambda out: Index.build(ROWS, out=out, model=MODEL, dtype="float16"),
    "passages": lambda out: Index.build(ROWS, out=out, model=MODEL, **CUT),
    "shards": lambda out: Index.build(ROWS, out=out, model=MODEL, n_shards=3),
    "passages in shards": lambda out: Index.build(ROWS, out=out, model=MODEL, n_shards=3, **CUT),
    "titles in German": lambda out: Index.build(
        ROWS, out=out, model=MODEL, lexical=LexicalSettings(language="german", title_weight=3)
    ),
}
GIVEN = ("dot", "euclidean")  # their queries are vectors
ORDERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "passages": {"group": False},
    "boosts": {"boost": [Boost("views", 0.01, "linear"), Boost("part", -0.1, "linear")]},
    "diverse groups": {"diversity": 0.4, "group_by": "part", "group_size": 2},
    "diverse passages": {"diversity": 0.5, "group": False},
    "operators": {"boost": Boost("part", 0.3)},
}


def _pages(search: Callable[..., Any], size: int) -> list[Hit]:
    joined: list[Hit] = []
    while page := search(k=size, offset=len(joined)):
        joined += page
    return joined


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_index_scores_by_the_other_documents(kind: str, tmp_path: Path) -> None:
    rng, draw = random.Random(3), np.random.default_rng(3)
    engine = SearchEngine(KINDS[kind](tmp_path / "i"))
    for _ in range(20 if kind in GIVEN else 6):
        fusion = Fusion(
            depth=rng.choice([3, 20, 1000]), dense_weight=rng.choice([0.0, 0.3, 0.5, 0.9])
        )
        options: dict[str, Any] = {"mode": "hybrid", "fusion": fusion, "fuzzy": rng.randrange(3)}
        if kind in GIVEN:
            options["vector"] = draw.standard_normal(DIM)
        query = text_of(rng, 4).replace("mill", "mil")
        every = engine.search(query, 1000, **options)
        assert_same(every, engine.search(query, 1000, where="part < 3", **options), fusion)
        for group in (True, False):
            whole = engine.search(query, 1000, group=group, **options)
            if fusion.dense_weight == 0:
                matched = ["lexical" in hit.stages for hit in whole]
                assert matched == sorted(matched, reverse=True)
            page = partial(engine.search, query, group=group, **options)
            assert _pages(page, 37) == list(whole)


@pytest.mark.thorough
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("reranks", [False, True])
def test_joined_pages_of_shards_are_the_long_result(
    order: str, reranks: bool, tmp_path: Path
) -> None:
    rows = rows_of(random.Random(2), 240)
    index = Index.build(rows, out=tmp_path / "i", model=MODEL, n_shards=2, **CUT)
    index.delete([str(n) for n in range(0, 240, 9)])
    engine = SearchEngine(index, reranker=Lengths() if reranks else None)
    query = "river +mill -salt" if order == "operators" else "river mill"
    every = engine.search(query, 5000, **ORDERS[order])
    if "group_by" in ORDERS[order]:  # offset counts groups
        joined = [h for n in range(8) for h in engine.search(query, 1, offset=n, **ORDERS[order])]
    else:
        joined = _pages(partial(engine.search, query, **ORDERS[order]), 37)
    assert joined == list(every)
    assert len({(hit.doc_id, hit.chunk) for hit in every}) == len(every) > 5
