"""All stages after retrieval together, compared with a plain reading of what they should do."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import QueryError
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.index import Index
from sbert_search.records import Hit, Query
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import Boost, Fusion, SearchMode

WORDS = ["red", "green", "blue", "fish", "bird", "cat", "dog", "tree"]
NOW = datetime(2024, 6, 1, tzinfo=UTC)
BOOSTS = {
    (): (),
    "views": (Boost("views", 0.05),),
    "both": (Boost("views", -0.1, "linear"), Boost("day", 0.5, "recency", 90, NOW)),
}


def documents(rng: random.Random, ids: Sequence[int]) -> list[dict[str, Any]]:
    rows = []
    for number in ids:
        row: dict[str, Any] = {"_id": str(number)}
        row["text"] = " ".join(rng.choices(WORDS, k=rng.randint(2, 14)))
        row["kind"] = rng.choice(["a", "b", "c", "d", None])
        row["views"] = rng.choice([0, 3, 50, None])
        row["day"] = rng.choice([date(2024, 1, 5), date(2024, 5, 30), date(2030, 1, 1), None])
        row["year"] = rng.randint(1, 9)
        rows.append({name: value for name, value in row.items() if value is not None})
    return rows


@pytest.fixture(scope="module", params=[0, 1])
def engine(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> SearchEngine:
    """An index of several segments with chunks, after updates."""
    rng, folder = random.Random(request.param), tmp_path_factory.mktemp("ordering")
    embedder = HashingEmbedder(max_len=8)
    index = Index.build(
        documents(rng, range(130)),
        out=folder / "i",
        model=embedder,
        settings=BuildSettings(on_truncate="chunk"),
    )
    index.upsert(documents(rng, range(100, 180)), model=embedder)
    index.delete([str(number) for number in rng.sample(range(180), 25)])
    return SearchEngine(index, embedder)


def boosted(hits: list[Hit], boosts: Sequence[Boost], most: float = 1.0) -> list[tuple[Hit, float]]:
    scored = []
    for hit in hits:
        score = hit.score / most
        for boost in boosts:
            value: Any = hit.metadata.get(boost.column)
            if value is not None and boost.kind == "recency":
                age = max((NOW.date() - value).days, 0)
                score += boost.weight * 0.5 ** (age * 86_400 / (90 * 86_400))
            elif value is not None:
                score += boost.weight * (math.log1p(value) if boost.kind == "log" else value)
        scored.append((hit, score))
    return sorted(scored, key=lambda pair: -pair[1])


def diversified(
    index: Index, scored: list[tuple[Hit, float]], diversity: float, most: float = 1.0
) -> list[tuple[Hit, float]]:
    vectors = {hit.doc_id: index.state.vectors(np.array([hit.row]))[0] for hit, _ in scored}
    left = list(scored)
    chosen: list[tuple[Hit, float]] = []
    while left:

        def value(pair: tuple[Hit, float]) -> float:
            relevance = pair[1] / most
            similar = [_cosine(vectors[pair[0].doc_id], vectors[c.doc_id]) for c, _ in chosen]
            return (1 - diversity) * relevance - diversity * max(similar, default=0.0)

        best = max(left, key=value)
        chosen.append(best)
        left.remove(best)
    return chosen


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    return round(float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second))), 6)


def grouped(hits: list[tuple[Hit, float]], column: str, size: int) -> list[list[tuple[Hit, float]]]:
    groups: dict[Any, list[tuple[Hit, float]]] = {}
    for hit, score in hits:
        value = hit.metadata.get(column)
        groups.setdefault(("none", hit.doc_id) if value is None else value, []).append((hit, score))
    return [members[:size] for members in groups.values()]


CASES = [
    # mode, where, boosts, diversity, group_by, group_size, offset, k, min_score
    ("hybrid", None, (), 0.0, "kind", 3, 0, 5, None),
    ("dense", "year > 3", (), 0.0, "kind", 2, 1, 3, None),
    ("lexical", "year > 3", (), 0.0, "kind", 4, 0, 50, None),
    ("dense", "views IS NOT NULL", (), 0.0, "views", 40, 0, 3, None),
    ("hybrid", "year < 8", "views", 0.0, None, 1, 2, 10, None),
    ("dense", None, "both", 0.0, None, 1, 0, 10, 0.4),
    ("lexical", None, "both", 0.0, "kind", 2, 1, 4, None),
    ("dense", None, (), 0.3, None, 1, 0, 20, None),
    ("hybrid", "year > 2", (), 1.0, None, 1, 3, 10, 0.2),
    ("lexical", "year > 2", "views", 0.7, "kind", 2, 0, 3, None),
    ("hybrid", None, "both", 0.5, "year", 3, 2, 4, 0.3),
]


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_combination_is_the_stages_one_after_the_other(
    engine: SearchEngine, case: tuple[Any, ...]
) -> None:
    mode, where, boosts, diversity, column, size, offset, k, least = case
    query = "red fish in a tree"
    # Dense search sees all documents, so that it chooses the same passages whatever k is.
    fusion = Fusion(depth=1000)
    every = engine.search(query, 10**6, mode=mode, where=where, fusion=fusion)
    chosen = BOOSTS[boosts]
    # The most that BM25 can give: boosts and diversity act on the share of it in lexical search.
    most = engine.index.state.lexical.weights(query).most if mode == "lexical" else 1.0
    depth = 100 if chosen or diversity else offset + k
    if column:  # the candidates hold the first documents of the first groups too
        first = grouped([(hit, hit.score) for hit in every], column, size)[: offset + k]
        ids = {hit.doc_id for members in first for hit, _ in members}
        candidates = [h for i, h in enumerate(every) if i < depth or h.doc_id in ids]
    else:
        candidates = every[:depth]
    scored = [(hit, hit.score) for hit in candidates]
    if chosen:
        scored = boosted(candidates, chosen, most)
    if least is not None:
        scored = [pair for pair in scored if pair[1] >= least]
    if diversity:
        scored = diversified(engine.index, scored, diversity, 1.0 if chosen else most)
    groups = grouped(scored, column, size) if column else [[pair] for pair in scored]
    expected = [pair for members in groups[offset : offset + k] for pair in members]
    hits = engine.search(
        query, k, mode=mode, where=where, boost=chosen, diversity=diversity, group_by=column,
        group_size=size, offset=offset, min_score=least, fusion=fusion,
    )  # fmt: skip
    assert len(hits) > 2
    assert [hit.doc_id for hit in hits] == [hit.doc_id for hit, _ in expected]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-9)
    before = sum(map(len, groups[:offset]))
    assert [hit.rank for hit in hits] == list(range(before + 1, before + 1 + len(hits)))
    wanted: set[str] = set()
    wanted |= {"boost"} if chosen else set()
    wanted |= {"mmr"} if diversity else set()
    assert all(wanted <= hit.stages.keys() for hit in hits)


class Longest:
    """Scores a pair by the length of its text."""

    def predict(self, pairs: list[tuple[str, str]], /) -> list[float]:
        return [float(len(text)) for _, text in pairs]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_the_later_stages_take_the_scores_of_the_reranker(
    engine: SearchEngine, mode: SearchMode
) -> None:
    reranking = SearchEngine(engine.index, engine.embedder, Longest())
    plain = reranking.search("red fish", 20, mode=mode, rerank_depth=20)
    boost = Boost("views", 0.3)
    hits = reranking.search("red fish", 5, mode=mode, rerank_depth=20, boost=boost, group_by="year")
    everything = boosted(list(plain), [boost])
    assert [h.doc_id for h in hits] == [
        members[0][0].doc_id for members in grouped(everything, "year", 1)[:5]
    ]
    assert all(hit.stages.keys() >= {"rerank", "boost"} for hit in hits)


def test_a_run_refuses_orders_that_are_not_by_score(engine: SearchEngine) -> None:
    queries = [Query("q", "red fish")]
    with pytest.raises(QueryError, match=r"diversity is 0\.5; a run is ordered by score"):
        engine.run(queries, diversity=0.5)
    with pytest.raises(QueryError, match="sort is 'views'; a run is ordered by score"):
        engine.run(queries, sort="views")
    boost = Boost("views", 0.2)
    hits = engine.search("red fish", 7, boost=boost)
    assert list(engine.run(queries, 7, boost=boost)["q"].items()) == [
        (hit.doc_id, hit.score) for hit in hits
    ]
