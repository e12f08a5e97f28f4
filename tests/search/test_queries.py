"""Searches by vectors: what they find, and which calls are refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import CorpusError, ModelMismatch, NoLexicalData, QueryError
from sbert_search.index.index import Index
from sbert_search.records import Hit, Query
from sbert_search.search.engine import SearchEngine
from sbert_search.search.queries import load_vectors
from sbert_search.text.fields import FieldNames
from tests.search.corpus import small_index

ROWS: list[dict[str, object]] = [
    {"_id": "east", "text": "sun rise", "n": 1},
    {"_id": "north", "text": "cold star", "n": 2},
    {"_id": "between", "text": "cold sun", "n": 3},
]
VECTORS = np.array([[1, 0], [0, 1], [3, 4]], np.float32)


@pytest.fixture
def given(tmp_path: Path) -> SearchEngine:
    return SearchEngine(Index.build(ROWS, out=tmp_path / "given", vectors=VECTORS))


def found(hits: list[Hit]) -> list[tuple[str, float]]:
    return [(hit.doc_id, round(hit.score, 4)) for hit in hits]


def test_a_vector_takes_the_place_of_the_text(given: SearchEngine) -> None:
    east = [("east", 1.0), ("between", 0.6), ("north", 0.0)]
    queries: list[Any] = [np.array([2.0, 0]), np.array([2, 0]), torch.tensor([2.0, 0]), [2.0, 0.0]]
    for query in queries:
        assert found(given.search(query)) == east
    assert found(given.search(np.array([0.0, 5.0]), 1, where="n < 3")) == [("north", 1.0)]
    many = given.search_many(np.array([[1.0, 0], [0, 1]]), k=1)
    assert [found(hits) for hits in many] == [[("east", 1.0)], [("north", 1.0)]]
    assert found(next(given.iter_hits(np.array([[1.0, 0.0]]), offset=1, k=1))) == [("between", 0.6)]
    assert given.search(np.array([1.0, 0]))[0].stages.keys() == {"dense"}


def test_a_vector_gives_the_hits_of_the_text_that_it_embeds(tmp_path: Path) -> None:
    engine = SearchEngine(small_index(tmp_path), HashingEmbedder())
    texts = ["water of the river", "yeast", "immune cells"]
    vectors = HashingEmbedder().encode_query(texts)
    for text, vector in zip(texts, vectors, strict=True):
        assert engine.search(vector) == engine.search(text, mode="dense")
    assert engine.search_many(vectors, 2) == engine.search_many(texts, 2, mode="dense")
    assert engine.search_many(texts, 2) == engine.search_many(texts, 2, vectors=vectors)
    queries = [Query(text, text) for text in texts]
    assert engine.run(queries) == engine.run(queries, vectors=vectors)
    assert engine.run(queries) != engine.run(queries, vectors=vectors[::-1])


def test_text_and_vector_together_make_a_hybrid_search_without_a_model(
    given: SearchEngine,
) -> None:
    hits = given.search("cold", vector=np.array([1.0, 0.0]))
    assert hits[0].doc_id == "between"  # second by its vector, and it has the word
    assert {name for hit in hits for name in hit.stages} >= {"dense", "lexical"}
    dense = given.search("cold", vector=np.array([1.0, 0.0]), mode="dense")
    assert dense[0].doc_id == "east"
    shown = given.search("cold", vector=np.array([1.0, 0.0]), highlight=True)
    assert (shown[0].best_sentence, shown[0].matched_words) == ("cold sun", ("cold",))


def test_a_given_vector_helps_to_choose_the_sentence_if_the_embedder_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"_id": "bread", "text": "Flour and water make dough. Yeast lifts it."}]
    index = Index.build(rows, out=tmp_path / "my.index", model="hashing")
    (vector,) = HashingEmbedder().encode_query(["it"])  # a stop word
    opened = SearchEngine(index, HashingEmbedder())
    for given in (None, vector):
        (hit,) = opened.search("it", vector=given, mode="dense", highlight=True)
        assert (hit.best_sentence, hit.matched_words) == ("Yeast lifts it.", ())
    monkeypatch.setattr(Index, "matching_embedder", lambda *_, **__: pytest.fail("not needed"))
    (hit,) = SearchEngine(index).search("it", vector=vector, mode="dense", highlight=True)
    assert hit.best_sentence == "Flour and water make dough."


def test_a_text_without_a_model_is_searched_by_its_words(given: SearchEngine) -> None:
    assert given.search("cold") == given.search("cold", mode="lexical")
    for mode in ("dense", "hybrid"):
        with pytest.raises(ModelMismatch, match="no text can be embedded"):
            given.search("cold", mode=mode)
    without_words = SearchEngine(Index.build(ROWS, vectors=VECTORS, lexical=None))
    with pytest.raises(ModelMismatch, match="no text can be embedded"):
        without_words.search("cold")
    with pytest.raises(NoLexicalData):
        without_words.search("cold", vector=VECTORS[0], mode="hybrid")
    assert without_words.search("cold", 1, vector=VECTORS[0])[0].doc_id == "east"


class _Reranker:
    def predict(self, pairs: list[tuple[str, str]]) -> Any:
        return np.zeros(len(pairs))


def _tensor() -> Any:
    return torch.ones(2, requires_grad=True)


V = np.array([1.0, 0.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.search(np.ones(3)), "The query has the shape (3,); a vector of this index"),
        (lambda e: e.search(np.ones((1, 2))), "the shape (1, 2)"),
        (lambda e: e.search(np.array([np.nan, 0])), "The query has a vector with values that are"),
        (lambda e: e.search(np.zeros(2)), "a vector of zeros"),
        (lambda e: e.search(["a", "b"]), "is a list of texts; pass one text, or use `search_many`"),
        (lambda e: e.search([[1.0, 2.0], [3.0]]), "The query is not a vector: setting an array"),
        (
            lambda e: e.search_many(np.ones(2)),
            "the shape (2,); several vectors have (n_queries, 2)",
        ),
        (lambda e: e.search(_tensor()), "The query is not a vector: Can't call numpy()"),
        (lambda e: e.search_many(_tensor()[None]), "The query is not a vector: Can't call numpy()"),
        (lambda e: e.search("sun", vector=_tensor()), "The vector of the query is not a vector"),
        (
            lambda e: e.search("sun", where=["n > 1"]),
            "The filter is ['n > 1']; it must be text",
        ),
        (lambda e: e.search(V, mode="hybrid"), "The mode hybrid reads the text of a query"),
        (lambda e: e.search(V, mode="lexical"), "The mode lexical reads the text of a query"),
        (lambda e: e.search(V, highlight=True), "The option highlight reads the text"),
        (lambda e: e.search(V, vector=V), "The queries are vectors already"),
        (lambda e: e.search("sun", vector=V, mode="lexical"), "compares no vectors"),
        (
            lambda e: e.search("sun", vector=np.ones(3)),
            "The vector of the query has the shape (3,)",
        ),
        (lambda e: e.search_many(["sun"], vectors=VECTORS), "3 vectors for 1 queries"),
        (lambda e: e.search_many([None]), "of type NoneType; it must be a text"),
        (lambda e: e.search(" "), "The query is empty"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(
    given: SearchEngine, call: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(QueryError, match=re.escape(message)):
        call(given)


def test_a_reranker_needs_the_text(given: SearchEngine) -> None:
    engine = SearchEngine(given.index, reranker=_Reranker())
    with pytest.raises(QueryError, match="A reranker reads the text of a query"):
        engine.search(V)
    assert len(engine.search("sun", vector=V)) == 3


def test_vectors_are_read_from_an_npy_file(tmp_path: Path) -> None:
    path = tmp_path / "q.npy"
    np.save(path, VECTORS)
    assert load_vectors(path).tolist() == [[1, 0], [0, 1], [3, 4]]
    np.save(path, VECTORS[2])
    assert load_vectors(path).tolist() == [[3, 4]]


def test_what_is_no_npy_file_is_refused_by_name(tmp_path: Path) -> None:
    missing, text, objects = tmp_path / "absent.npy", tmp_path / "text.npy", tmp_path / "o.npy"
    text.write_text("1 0\n0 1\n")
    np.save(objects, np.array([{}], dtype=object))
    for path in (missing, text, objects):
        with pytest.raises(QueryError, match=f"{path}: cannot be read as an .npy file"):
            load_vectors(path)
    for array in (np.float32(3), np.ones((2, 2, 2)), np.ones(2, complex), np.zeros(2, "M8[s]")):
        np.save(tmp_path / "other.npy", array)
        with pytest.raises(QueryError, match=r"other\.npy: holds .* of the shape"):
            load_vectors(tmp_path / "other.npy")
    archive = tmp_path / "q.npz"
    np.savez(archive, VECTORS)
    with pytest.raises(QueryError, match=r"an \.npz archive; save the vectors with numpy\.save"):
        load_vectors(archive)


@pytest.mark.parametrize("metric", ["euclidean", "dot"])
def test_vectors_that_are_too_long_for_their_scores_are_refused(
    tmp_path: Path, metric: Literal["euclidean", "dot"]
) -> None:
    rows = [{"_id": str(n), "text": "a", "vector": [3e17 * n, 1.0]} for n in range(4)]
    build = partial(Index.build, fields=FieldNames(vector="vector"), metric=metric)
    engine = SearchEngine(build(rows[:3], out=tmp_path / "i"))
    assert len(engine.search(np.array([6e17, 1.0]), 3)) == 3
    with pytest.raises(QueryError, match=r"a vector with a norm above 1e\+18"):
        engine.search(np.array([1e19, 0.0]))
    with pytest.raises(CorpusError, match=r"rows:1: the vector has a norm above 1e\+18"):
        build([{"_id": "5", "text": "a", "vector": [3e19, 0.0]}], out=tmp_path / "j")


def test_an_unknown_keyword_of_an_engine_is_refused_before_the_model_is_needed() -> None:
    wrong: Any = {"precison": "fp32"}
    with pytest.raises(TypeError, match="Unknown keyword 'precison'; did you mean 'precision'"):
        SearchEngine(Index.from_vectors(VECTORS), **wrong)
