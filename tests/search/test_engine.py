"""What an engine answers, and what it refuses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ConfigError, IndexStoreError, ModelMismatch, NotAnIndex, QueryError
from sbert_search.index.building import model_check
from sbert_search.index.index import Index
from sbert_search.index.storage.manifest import BuildCursor, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.records import Hit, Query, StageScore
from sbert_search.search.engine import SearchEngine
from tests.search.corpus import DOCUMENTS, small_index, write_jsonl


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return small_index(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def engine(index: Index) -> SearchEngine:
    return SearchEngine(index, HashingEmbedder())


class Counting(HashingEmbedder):
    """Counts how many threads embed at once, and breaks on one query."""

    running = most = 0

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        if "break" in tokens.texts:
            raise RuntimeError("broken")
        Counting.running += 1
        Counting.most = max(Counting.most, Counting.running)
        time.sleep(0.01)
        Counting.running -= 1
        return super().encode_tokens(tokens)


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.doc_id for hit in hits]


def test_a_hit_says_all_there_is_to_say(engine: SearchEngine) -> None:
    (hit,) = engine.search("what lifts dough", k=1, mode="dense", highlight=True)
    assert (hit.rank, hit.doc_id, hit.title, hit.text) == (
        1,
        "bread",
        "Bread",
        "Flour and water make dough. Yeast lifts it.",
    )
    assert hit.metadata == {"y": 3}
    assert hit.passage == "Bread Flour and water make dough. Yeast lifts it."
    assert (hit.chunk, hit.span) == (0, (0, len(hit.passage)))
    assert hit.stages == {"dense": StageScore(1, hit.score)}
    assert hit.best_sentence in ("Flour and water make dough.", "Yeast lifts it.")
    query = HashingEmbedder().encode_query(["what lifts dough"])
    document = HashingEmbedder().encode_document([f"{hit.title} {hit.text}"])
    assert hit.score == pytest.approx(float(query[0] @ document[0]), abs=1e-6)


def test_equal_scores_come_in_the_order_of_their_rows(engine: SearchEngine) -> None:
    hits = engine.search("the same words", k=2)
    assert ids(hits) == ["twin-1", "twin-2"]
    assert hits[0].score == hits[1].score


def test_k_above_the_number_of_documents_returns_them_all(engine: SearchEngine) -> None:
    hits = engine.search("water", k=10**9)
    assert sorted(ids(hits)) == sorted(row["_id"] for row in DOCUMENTS)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_a_filter_comes_before_ranking(engine: SearchEngine) -> None:
    assert sorted(ids(engine.search("the same words", k=2, where="y <= 2"))) == ["mill", "vaccines"]
    assert engine.search("the same words", where="y > 5") == []


@pytest.mark.thorough
def test_many_queries_answer_as_one_by_one(engine: SearchEngine) -> None:
    texts = ["immune cells", "river water", "dough"] * 100
    assert engine.search_many(texts, k=3) == [engine.search(text, k=3) for text in texts]


def test_a_run_holds_ids_and_scores_best_first(engine: SearchEngine) -> None:
    run = engine.run([Query("q1", "immune cells"), Query("q2", "dough")], k=2)
    assert {query: list(hits) for query, hits in run.items()} == {
        query: ids(engine.search(text, k=2))
        for query, text in (("q1", "immune cells"), ("q2", "dough"))
    }


class LongestFirst:
    """Scores a pair by the length of its text."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def predict(self, pairs: list[tuple[str, str]], /) -> list[float]:
        self.asked += pairs
        return [float(len(text)) for _, text in pairs]


def test_a_reranker_orders_the_first_hits_again(index: Index) -> None:
    scorer = LongestFirst()
    engine = SearchEngine(index, HashingEmbedder(), scorer)
    hits = engine.search("the same words", k=2, rerank_depth=3)
    assert len(scorer.asked) == 3
    assert ids(hits) == ["mill", "twin-1"]
    assert [hit.rank for hit in hits] == [1, 2]
    assert hits[0].score == hits[0].stages["rerank"].score == 52.0
    assert hits[1].stages["dense"].rank == 1


def test_a_reranker_sees_its_depth_and_the_other_hits_follow(index: Index) -> None:
    scorer = LongestFirst()
    engine = SearchEngine(index, HashingEmbedder(), scorer)
    plain = SearchEngine(index, HashingEmbedder()).search("dough", k=5)
    hits = engine.search("dough", k=5, rerank_depth=2)
    assert len(scorer.asked) == 2
    assert {hit.doc_id for hit in hits[:2]} == {hit.doc_id for hit in plain[:2]}
    assert [hit.doc_id for hit in hits[2:]] == [hit.doc_id for hit in plain[2:]]
    assert [hit.score for hit in hits[2:]] == [hit.score for hit in plain[2:]]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"query": " \n"}, "The query is empty"),
        ({"query": "x", "k": 0}, "k is 0"),
        ({"query": "x", "k": -3}, "k is -3"),
        ({"query": "x", "mode": "hybird"}, "Unknown mode 'hybird'; did you mean 'hybrid'?"),
        ({"query": "x", "where": "year > 3"}, r"(?s)Unknown column 'year'.*\^"),
    ],
)
def test_what_cannot_be_asked(engine: SearchEngine, ask: dict[str, str], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        engine.search(**ask)  # type: ignore[arg-type]


def test_an_empty_query_among_many_is_named(engine: SearchEngine) -> None:
    with pytest.raises(QueryError, match="Query 300 is empty"):
        engine.search_many(["x"] * 299 + [""])


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ("one text", "one string; pass a list of strings, or use `search`"),
        (["fine", 7], "Query 2 is of type int; it must be a text"),
        ([None], "The query is of type NoneType"),
    ],
)
def test_what_is_no_text_is_refused(
    engine: SearchEngine, queries: Sequence[str], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        engine.search_many(queries)


class NotFinite(HashingEmbedder):
    """The hashing embedder, until it breaks."""

    broken = False

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        vectors = super().encode_tokens(tokens)
        if self.broken:
            vectors[-1, 0] = np.nan
        return vectors


def test_a_query_vector_that_is_not_finite_is_refused(index: Index) -> None:
    embedder = NotFinite()
    engine = SearchEngine(index, embedder)
    embedder.broken = True
    with pytest.raises(QueryError, match="not finite for 'broken'"):
        engine.search_many(["fine", "broken"])


def test_an_emptied_index_has_no_hits(tmp_path: Path) -> None:
    index = small_index(tmp_path)
    assert index.delete(where="y > 0") == 5
    assert SearchEngine(index, HashingEmbedder()).search("x") == []


def test_another_model_is_refused_by_the_field_that_differs(index: Index) -> None:
    with pytest.raises(ModelMismatch, match="dim: 384, not 128"):
        SearchEngine(index, HashingEmbedder(128))
    with pytest.raises(ModelMismatch, match="max_len: 512, not 16"):
        SearchEngine(index, HashingEmbedder(max_len=16))


def test_no_index_no_engine(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndex, match="holds no index"):
        SearchEngine(tmp_path)


def test_the_model_is_opened_by_the_name_in_the_index(index: Index) -> None:
    assert SearchEngine(index.path).embedder.identity == HashingEmbedder().identity


def test_an_unfinished_build_is_refused(tmp_path: Path) -> None:
    embedder = HashingEmbedder()
    settings = VectorSettings(dim=embedder.dim, identity=embedder.identity.to_mapping())
    build = BuildCursor(source_sha256="0" * 64, rows=2)
    IndexStore.create(tmp_path / "begun.index", Manifest.new(settings, build=build))
    with pytest.raises(IndexStoreError, match=r"unfinished build \(2 rows are done\)"):
        SearchEngine(tmp_path / "begun.index", embedder)


def test_what_cannot_be_asked_is_refused_before_a_model_is_loaded(index: Index) -> None:
    with pytest.raises(QueryError, match="The query is empty"):
        SearchEngine(index, "no-such/model").search("")


@pytest.mark.parametrize("n_scores", [1, 3])
def test_a_reranker_without_one_number_for_a_pair_is_refused(index: Index, n_scores: int) -> None:
    class Columns:
        def predict(self, pairs: list[tuple[str, str]], /) -> np.ndarray:
            return np.zeros((len(pairs), n_scores))

    engine = SearchEngine(index, HashingEmbedder(), Columns())
    with pytest.raises(ConfigError, match=rf"shape \(5, {n_scores}\) for 5 pairs, and not \(5,\)"):
        engine.search("dough")


def test_a_run_with_a_reranker_follows_its_scores(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder(), LongestFirst())
    assert engine.run([Query("q", "dough")], k=1) == {"q": {"mill": 52.0}}


def test_an_engine_sees_what_its_index_sees(tmp_path: Path) -> None:
    index = small_index(tmp_path)
    shared, apart = SearchEngine(index), SearchEngine(index.path)
    more = write_jsonl(tmp_path / "more.jsonl", [{"_id": "new", "text": "the newest words"}])
    index.add(more, model=HashingEmbedder())
    assert [engine.search("the newest words")[0].doc_id for engine in (shared, apart)] == [
        "new",
        "twin-1",
    ]
    assert not shared.refresh()
    assert apart.refresh()
    assert apart.search("the newest words")[0].doc_id == "new"
    assert not apart.refresh()


def test_no_more_searches_at_once_than_cores(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbert_search.search.engine.usable_cores", lambda: 2)
    engine = SearchEngine(index, Counting())
    for _ in range(3):  # more than there are turns, all of which are given back
        with pytest.raises(RuntimeError, match="broken"):
            engine.search("break")
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(engine.search, ["river mill", "flour"] * 10))
    assert [hits[0].doc_id for hits in found] == ["mill", "bread"] * 10
    assert Counting.most == 2


def test_the_first_of_several_threads_opens_the_model(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    def open_slowly(*args: object, **options: object) -> HashingEmbedder:
        opened.append(1)
        time.sleep(0.2)
        return HashingEmbedder()

    monkeypatch.setattr(model_check, "open_matching", open_slowly)
    # From Python 3.12 on, `functools.cached_property` has no lock of its own.
    monkeypatch.setattr(cached_property, "__get__", _without_lock)
    engine = SearchEngine(index)
    with ThreadPoolExecutor(4) as clients:
        list(clients.map(engine.search, ["river mill"] * 4))
    assert len(opened) == 1


def _without_lock(self: Any, instance: Any, owner: Any = None) -> Any:
    if instance is None:
        return self
    if self.attrname not in vars(instance):
        vars(instance)[self.attrname] = self.func(instance)
    return vars(instance)[self.attrname]
