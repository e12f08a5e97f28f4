"""Search by words and by both, from an index to hits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError, NoLexicalData, QueryError
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.index import Index
from sbert_search.records import Hit, Query
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import Boost, Fusion, SearchKeywords, SearchMode
from tests.models.tiny import TOKENS, tiny_static
from tests.search.corpus import small_index


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return small_index(tmp_path_factory.mktemp("modes"))


@pytest.fixture
def engine(index: Index) -> SearchEngine:
    return SearchEngine(index, HashingEmbedder())


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.doc_id for hit in hits]


def test_words_find_documents_without_any_model(index: Index) -> None:
    engine = SearchEngine(index, "no-such/model")
    hits = engine.search("Which mills are turning?", mode="lexical", highlight=True)
    assert ids(hits) == ["mill"]
    assert hits[0].best_sentence == "The mill stands by the river."
    assert hits[0].matched_words == ("mills", "turning")
    assert hits[0].stages.keys() == {"lexical"}
    assert engine.search("xylophone", mode="lexical", highlight=True) == []


def test_words_of_many_documents_are_named_only_where_no_other_matched(tmp_path: Path) -> None:
    rows = [{"_id": str(n), "text": f"What does number{n} do?"} for n in range(11)]
    engine = SearchEngine(small_index(tmp_path, rows), HashingEmbedder())
    hits = engine.search("what does number3 mean", mode="lexical", highlight=True)
    assert hits[0].matched_words == ("number3",)
    assert hits[1].matched_words == ("what", "does")
    engine.index.delete(["0"])  # of the ten that are left, no word is in too many
    hits = engine.search("what does number3 mean", mode="lexical", highlight=True)
    assert hits[0].matched_words == ("what", "does", "number3")


def test_hybrid_finds_what_either_finds_and_says_what_each_said(engine: SearchEngine) -> None:
    hits = engine.search("water", mode="hybrid")
    dense = {hit.doc_id: hit.stages["dense"] for hit in engine.search("water", mode="dense")}
    words = {hit.doc_id: hit.stages["lexical"] for hit in engine.search("water", mode="lexical")}
    assert set(ids(hits)) == {*dense, *words}
    for rank, hit in enumerate(hits, 1):
        assert hit.stages["fused"].rank == hit.rank == rank
        assert hit.stages["fused"].score == hit.score
        assert hit.stages["dense"] == dense[hit.doc_id]
        assert hit.stages.get("lexical") == words.get(hit.doc_id)


def test_auto_is_hybrid_where_words_are_indexed_and_dense_elsewhere(tmp_path: Path) -> None:
    index = small_index(tmp_path)
    engine = SearchEngine(index, HashingEmbedder())
    (hit,) = engine.search("water turns", 1)
    assert hit.stages.keys() == {"dense", "lexical", "fused"}
    assert engine.search("water turns") == engine.search("water turns", mode="hybrid")
    queries = [Query("q", "water turns")]
    assert engine.run(queries) == engine.run(queries, mode="hybrid")
    index.set_lexical(None)
    (hit,) = engine.search("water turns", 1)
    assert hit.stages.keys() == {"dense"}
    assert engine.search("water turns") == engine.search("water turns", mode="dense")


def test_a_filter_holds_in_every_mode(engine: SearchEngine) -> None:
    for mode in ("dense", "lexical", "hybrid"):
        assert "mill" not in ids(engine.search("water", mode=mode, where="y >= 3"))
    assert ids(engine.search("water", mode="lexical", where="y >= 3")) == ["bread"]


def test_k_bounds_what_comes_back_and_not_what_is_fused(engine: SearchEngine) -> None:
    every = engine.search("the same water", 5, mode="hybrid")
    assert ids(engine.search("the same water", 2, mode="hybrid")) == ids(every)[:2]


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_a_run_is_what_searches_one_by_one_give(engine: SearchEngine, mode: SearchMode) -> None:
    texts = ["immune cells", "river water", "dough", "zebra"] * 80
    queries = [Query(str(number), text) for number, text in enumerate(texts)]
    run = engine.run(queries, 3, mode=mode)
    for query in queries[::50]:
        hits = engine.search(query.text, 3, mode=mode)
        assert list(run[query.query_id].items()) == [(hit.doc_id, hit.score) for hit in hits]


def test_words_show_the_passage_that_has_most_of_them(tmp_path: Path) -> None:
    texts = ["one two three four the river five", "the mill by the river six seven"]
    rows = [{"id": "long", "text": " ".join(texts)}, {"id": "other", "text": "nothing"}]
    index = small_index(
        tmp_path,
        rows,
        embedder=HashingEmbedder(max_len=7),
        settings=BuildSettings(on_truncate="chunk"),
    )
    assert index.state.n_rows == 3
    engine = SearchEngine(index, HashingEmbedder(max_len=7))
    (hit,) = engine.search("rivers and mills", mode="lexical")
    assert hit.passage == hit.text == "the mill by the river six seven"
    assert (hit.chunk, hit.span) == (1, (34, 65))
    assert engine.search("mill river", 1, mode="hybrid")[0].doc_id == "long"


class Asked:
    """Scores pairs by how late their text stands in the alphabet, and keeps them."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, str]]] = []

    def predict(self, pairs: list[tuple[str, str]], /) -> list[float]:
        self.calls.append(pairs)
        return [float(ord(text[0])) for _, text in pairs]


def test_many_queries_are_reranked_in_one_call(index: Index) -> None:
    scorer = Asked()
    engine = SearchEngine(index, HashingEmbedder(), scorer)
    many = engine.search_many(["water", "xylophone", "dough"], mode="lexical")
    assert [len(hits) for hits in many] == [2, 0, 1]
    assert [len(pairs) for pairs in scorer.calls] == [3]
    assert [hit.stages["rerank"].rank for hit in many[0]] == [1, 2]


def test_a_rerankers_score_can_be_mixed_with_the_one_before(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder(), Asked())
    alone = engine.search("immune cells", mode="hybrid")
    fusion = Fusion(rerank_weight=0.0, score_range=(0, 1))
    mixed = engine.search("immune cells", mode="hybrid", fusion=fusion)
    assert alone[0].stages["rerank"].rank == 1
    assert ids(mixed) == ids(
        SearchEngine(index, HashingEmbedder()).search("immune cells", mode="hybrid")
    )


class Tens:
    """Gives 10, 9, 8, ... to the pairs that it is asked."""

    def predict(self, pairs: list[tuple[str, str]], /) -> list[float]:
        return [10.0 - place for place in range(len(pairs))]


class Chances(Tens):
    """Has probabilities too, as a `Reranker` does."""

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        return scores / 20


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_mixed_score_is_the_weighted_sum_of_scores_from_0_to_1(
    index: Index, mode: SearchMode
) -> None:
    plain = SearchEngine(index, HashingEmbedder()).search("water cells", mode=mode)
    before = [hit.score for hit in plain]
    if mode == "lexical":
        before = [score / index.state.lexical.weights("water cells").most for score in before]
    for scorer, fusion, top in (
        (Tens(), Fusion(rerank_weight=0.7, score_range=(0, 10)), 10),
        (Chances(), Fusion(rerank_weight=0.7), 20),
        (Chances(), Fusion(rerank_weight=0.7, score_range=(0, 10)), 10),  # the user decides
    ):
        engine = SearchEngine(index, HashingEmbedder(), scorer)
        hits = engine.search("water cells", mode=mode, fusion=fusion)
        expected = [0.7 * (10 - n) / top + 0.3 * score for n, score in enumerate(before)]
        assert [hit.doc_id for hit in hits] == [hit.doc_id for hit in plain]
        assert [hit.score for hit in hits] == pytest.approx(expected)
        assert [hit.stages["rerank"].score for hit in hits] == [10 - n for n in range(len(hits))]


def test_a_boost_is_added_to_the_probability_of_a_reranker(index: Index) -> None:
    boost = Boost("y", 0.001, "linear")
    for scorer, top in ((Chances(), 20), (Tens(), 1)):  # the range of Tens is unknown
        engine = SearchEngine(index, HashingEmbedder(), scorer)
        for hit in engine.search("water cells", boost=boost):
            own = hit.stages["rerank"].score / top
            assert hit.score == pytest.approx(own + 0.001 * float(str(hit.metadata["y"])))
        assert engine.search("water cells")[0].score == 10  # the score of the reranker itself


def test_scores_of_an_unknown_range_are_not_mixed(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder(), Tens())
    with pytest.raises(QueryError, match=r"scores of Tens .* unknown; .* Fusion\(score_range="):
        engine.search("water cells", fusion=Fusion(rerank_weight=0.5))


@pytest.mark.parametrize(
    ("depth", "message"), [(0, "must be at least 1"), (10_001, "from 0 to 10,000")]
)
def test_a_depth_that_cannot_be_reranked_is_refused(index: Index, depth: int, message: str) -> None:
    engine = SearchEngine(index, HashingEmbedder(), Asked())
    with pytest.raises(QueryError, match=message):
        engine.search("water", rerank_depth=depth)


def test_what_is_no_reranker_is_refused(index: Index) -> None:
    with pytest.raises(ConfigError, match="cannot rerank: it has no method predict"):
        SearchEngine(index, HashingEmbedder(), "cross-encoder/name")  # type: ignore[arg-type]


class NotFinite:
    """A reranker on a bad day."""

    def predict(self, pairs: list[tuple[str, str]], /) -> list[float]:
        return [float("nan") if "river" in text else 1.0 for _, text in pairs]


def test_a_score_that_is_not_finite_is_refused(index: Index) -> None:
    engine = SearchEngine(index, HashingEmbedder(), NotFinite())
    with pytest.raises(QueryError, match="not finite for 'dough' and 'The mill stands by the"):
        engine.search("dough")


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_without_lexical_data_the_way_to_them_is_shown(tmp_path: Path, mode: SearchMode) -> None:
    index = small_index(tmp_path, settings=BuildSettings(lexical=None))
    engine = SearchEngine(index, HashingEmbedder())
    with pytest.raises(NoLexicalData, match=r"index lexical .*small\.index"):
        engine.search("water", mode=mode)
    (hit,) = engine.search("what lifts dough", k=1, highlight=True)
    assert hit.matched_words == ()


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_an_emptied_index_gives_no_hits_in_every_mode(tmp_path: Path, mode: SearchMode) -> None:
    """As a filter that selects nothing: an index may be empty for a time, which is no mistake."""
    index = small_index(tmp_path)
    engine = SearchEngine(index, HashingEmbedder())
    index.delete(where="y > 0")
    options: list[SearchKeywords] = [
        {}, {"group": False}, {"diversity": 0.5}, {"fuzzy": 1}, {"min_score": 0.1}, {"offset": 4},
        {"group_by": "y"}, {"where": "y > 0"}, {"boost": Boost("y", 1.0, "linear")},
    ]  # fmt: skip
    for query in ("x", "+water", '"to be" -x'):
        for keywords in options:
            assert engine.search(query, 5, **keywords | {"mode": mode}) == []
    assert engine.search_many(["x", "y"], mode=mode) == [[], []]
    with pytest.raises(QueryError, match="is empty"):
        engine.search(" ", mode=mode)


def test_a_query_longer_than_the_model_reads_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embedder = HashingEmbedder(max_len=4)
    index = small_index(tmp_path, embedder=embedder, settings=BuildSettings(on_truncate="chunk"))
    engine = SearchEngine(index, embedder)
    engine.search("one two three four five six")
    told = "The query is longer than the 4 tokens the model reads; 2 tokens were cut off."
    assert told in capsys.readouterr().err
    engine.search_many(["short", "one two three four five"])
    assert "1 of 2 queries are longer than the 4 tokens" in capsys.readouterr().err
    engine.search("one two three four five six", mode="lexical")
    assert capsys.readouterr().err == ""


SUNS = [
    {"_id": "red", "text": "the red sun", "kind": "a"},
    {"_id": "cat", "text": "a cat sat on the mat", "kind": "a"},
    {"_id": "far", "text": "it ran far away and then it slept in the sun", "kind": "b"},
    {"_id": "dog", "text": "a dog ran", "kind": "b"},
]


def without_sun(folder: Path, **options: Any) -> SearchEngine:
    """Make an index whose model, a table, has a row of zeros for the word sun."""
    table = tiny_static(folder / "table") / "model.safetensors"
    weight = load_file(table)["embedding.weight"]
    weight[TOKENS.index("sun")] = 0
    save_file({"embedding.weight": weight}, table)
    return SearchEngine(Index.build(SUNS, model=str(table.parent), out=folder / "i", **options))


def test_a_query_without_a_vector_finds_documents_by_words_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = without_sun(tmp_path)
    assert engine.search("sun", mode="dense") == engine.search("+sun", mode="dense") == []
    told = "The model knows no word of the query: dense search finds nothing; the modes hybrid and"
    assert capsys.readouterr().err.count(told) == 2
    assert engine.search("sun", mode="dense", group_by="kind") == []
    assert engine.search("sun", mode="dense", group=False) == []
    for fusion in (Fusion(), Fusion(method="rrf"), Fusion(depth=1)):
        for more in ({}, {"min_score": 0.0}, {"group": False}, {"diversity": 0.3}):
            hits = engine.search("sun", mode="hybrid", fusion=fusion, highlight=True, **more)
            assert (ids(hits), hits[0].score > 0) == (["red", "far"], True), (fusion, more)
    assert "of the query: only words are compared." in capsys.readouterr().err
    none, some = engine.search_many(["sun", "red cat"], mode="dense")
    assert (none, len(some)) == ([], 4)
    assert "no word of 1 of 2 queries: dense search finds nothing" in capsys.readouterr().err
    asked = [Query("q1", "sun"), Query("q2", "cat")]
    assert [len(found) for found in engine.run(asked, mode="dense").values()] == [0, 4]


def test_a_vector_of_zeros_has_dot_products(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = without_sun(tmp_path, metric="dot")
    assert [hit.score for hit in engine.search("sun", mode="dense")] == [0, 0, 0, 0]
    assert "knows no word" not in capsys.readouterr().err
