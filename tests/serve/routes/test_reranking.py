"""Reranking over HTTP gives the scores of `Reranker`, in the forms of Cohere and of TEI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sbert_search.search.engine import SearchEngine
from sbert_search.search.rerankers import BestWindow, Reranker
from sbert_search.text.tokens.tokenizer import TextTokenizer
from tests.models.tiny import TEXTS
from tests.serve.live import Live

QUERY = "the red cat"


@pytest.fixture(scope="module")
def reranker(models: Path) -> Reranker:
    return Reranker(models / "cross", precision="fp32")


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_in_the_form_of_cohere(
    tiny: Live, reranker: Reranker, path: str
) -> None:
    documents = [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]]
    answer = tiny.post(path, model="rerank-v3.5", query=QUERY, documents=documents)
    assert answer.status == 200, answer.raw
    results = answer.json["results"]
    expected = reranker.rank(QUERY, TEXTS)
    assert [one["index"] for one in results] == [one["corpus_id"] for one in expected]
    scores = [one["score"] for one in expected]
    np.testing.assert_allclose([one["relevance_score"] for one in results], scores, atol=1e-6)
    assert "document" not in results[0]
    assert answer.json["meta"]["billed_units"] == {"search_units": 1}
    assert answer.json["usage"]["total_tokens"] > 0
    assert answer.json["usage"]["truncated_texts"] == 2
    best = tiny.post(path, query=QUERY, documents=documents, top_n=2, return_documents=True).json
    assert [one["document"]["text"] for one in best["results"]] == [
        TEXTS[one["corpus_id"]] for one in expected[:2]
    ]


def test_texts_are_ranked_in_the_form_of_tei(tiny: Live, reranker: Reranker) -> None:
    answer = tiny.post("/rerank", query=QUERY, texts=TEXTS, return_text=True)
    expected = reranker.rank(QUERY, TEXTS)
    assert [(one["index"], one["text"]) for one in answer.json] == [
        (one["corpus_id"], TEXTS[one["corpus_id"]]) for one in expected
    ]
    assert "text" not in tiny.post("/rerank", query=QUERY, texts=TEXTS).json[0]
    long = {"query": QUERY, "max_tokens_per_doc": 2, "truncate": False}
    for body, status in (
        ({"query": QUERY, "texts": TEXTS, "truncate": False}, 413),  # as TEI
        ({**long, "texts": TEXTS}, 413),
        ({**long, "documents": TEXTS}, 400),  # as Cohere, Jina and vLLM
        ({"query": QUERY, "documents": TEXTS, "truncate": False}, 400),
        ({"query": QUERY, "texts": ["a"] * 2049}, 413),
    ):
        assert tiny.ask("POST", "/rerank", body).status == status


def test_documents_are_cut_where_the_client_says(tiny: Live, reranker: Reranker) -> None:
    body = {"query": "cat", "documents": ["the cat sat on the mat", "dog"], "max_tokens_per_doc": 2}
    results = tiny.ask("POST", "/rerank", body).json["results"]
    scores = {one["index"]: one["relevance_score"] for one in results}
    expected = reranker.predict([("cat", "the cat"), ("cat", "dog")])
    np.testing.assert_allclose([scores[0], scores[1]], expected, atol=1e-6)
    whole = tiny.ask("POST", "/rerank", {**body, "return_documents": True}).json
    shown = {one["index"]: one["document"]["text"] for one in whole["results"]}
    assert shown == dict(enumerate(["the cat sat on the mat", "dog"]))
    assert whole["usage"]["truncated_texts"] == 1


@pytest.mark.parametrize("tokens", [2, 20, 23, 100])
def test_a_text_that_is_cut_twice_counts_once(tiny: Live, reranker: Reranker, tokens: int) -> None:
    """The client's limit cuts a text, and then the model's limit may cut the pair."""
    texts = ["the cat sat " * 30, TEXTS[0], "a dog " * 5, "the cat sat " * 30]
    answer = tiny.post("/rerank", query=QUERY, documents=texts, max_tokens_per_doc=tokens)
    ids, _ = TextTokenizer(reranker.tokenizer.backend, 1000).encode(texts)
    room = reranker.max_len - reranker.tokenizer.pair.size - (len(ids_of(reranker, QUERY)) - 2)
    cut = sum(len(one) - 2 > min(tokens, room) for one in ids)
    assert answer.json["usage"]["truncated_texts"] == cut
    assert cut in (2, 3, 4)


def ids_of(reranker: Reranker, text: str) -> Sequence[int]:
    return reranker.tokenizer.encode([text])[0][0]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"query": "x"}, 400, "documents"),
        ({"query": "x", "documents": []}, 400, "documents"),
        ({"query": " ", "documents": ["a"]}, 400, "query"),
        ({"query": "x", "documents": [1]}, 400, "documents[0]"),
        ({"query": "x", "documents": ["a"], "top_n": 0}, 400, "top_n"),
        ({"query": "x", "documents": [{"title": "a"}]}, 400, "documents[0]"),
        ({"query": "x", "documents": [{"text": ["a"]}]}, 400, "documents[0]"),
        ({"query": "x", "documents": ["a"] * 2049}, 400, "documents"),
    ],
)
def test_wrong_requests_are_named(tiny: Live, body: object, status: int, param: str) -> None:
    answer = tiny.ask("POST", "/rerank", body)
    assert (answer.status, answer.json["error"]["param"]) == (status, param)


def test_a_server_without_a_reranker_says_so(live: Live) -> None:
    answer = live.post("/rerank", query="x", documents=["a"])
    assert answer.status == 404
    assert "--rerank" in answer.json["error"]["message"]


def test_a_search_is_reranked_only_when_asked(tiny: Live, models: Path, reranker: Reranker) -> None:
    index = models / "tiny.index"
    plain = tiny.search("the cat", explain=True)
    assert "rerank" not in plain[0]["stages"]
    hits = tiny.search("the cat", rerank=True, explain=True)
    engine = SearchEngine(index, reranker=BestWindow(reranker), precision="fp32")
    expected = engine.search("the cat")
    assert [hit["id"] for hit in hits] == [hit.doc_id for hit in expected]
    np.testing.assert_allclose(
        [hit["stages"]["rerank"]["score"] for hit in hits],
        [hit.stages["rerank"].score for hit in expected],
        atol=1e-6,
    )
