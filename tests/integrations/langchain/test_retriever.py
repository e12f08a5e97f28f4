"""The retriever gives passages, in every mode."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import DeterministicFakeEmbedding

from sbert_search.errors import QueryError
from sbert_search.integrations.langchain import (
    SbertSearchEmbeddings,
    SbertSearchRetriever,
    SbertSearchVectorStore,
)

LONG = " ".join(f"Sentence {n} is about dunes." for n in range(60)) + " Herons eat fish."


@pytest.fixture(scope="module")
def store() -> SbertSearchVectorStore:
    texts = [LONG, "The moon pulls at the sea.", "Wind heaps up sand."]
    kinds: list[dict[str, object]] = [{"kind": "long"}, {"kind": "short"}, {"kind": "short"}]
    model = SbertSearchEmbeddings("hashing")
    return SbertSearchVectorStore.from_texts(texts, model, kinds, chunk_tokens=40)


@pytest.mark.parametrize("mode", ["auto", "dense", "lexical", "hybrid"])
def test_the_best_passage_is_found(store: SbertSearchVectorStore, mode: str) -> None:
    retriever = SbertSearchRetriever(store=store, k=1, mode=mode)
    (found,) = retriever.invoke("herons fish")
    assert "Herons eat fish." in found.page_content
    assert len(found.page_content) < len(LONG) / 2
    assert store.similarity_search("herons fish", 1)[0].page_content == LONG


def test_filters_and_options_reach_the_search(store: SbertSearchVectorStore) -> None:
    retriever = SbertSearchRetriever(
        store=store, k=3, filter={"kind": "short"}, search_kwargs={"offset": 1}
    )
    assert len(retriever.invoke("sea")) == 1
    assert len(retriever.invoke("sea", filter={"kind": "long"}, offset=0)) == 1
    both = asyncio.run(retriever.abatch(["sea", "sand"], offset=0))
    assert [found[0].page_content[:4] for found in both] == ["The ", "Wind"]
    two = SbertSearchRetriever(store=store, k=3, search_kwargs={"k": 2})
    assert (len(two.invoke("sea")), len(two.invoke("sea", k=1))) == (2, 1)
    with pytest.raises(QueryError, match="Unknown mode"):
        SbertSearchRetriever(store=store).invoke("sea", mode="sparse")


class _Heard(BaseCallbackHandler):
    def __init__(self) -> None:
        self.queries: list[str] = []

    def on_retriever_start(self, serialized: object, query: str, **kwargs: object) -> None:
        self.queries.append(query)


def test_a_batch_finds_what_single_calls_find(store: SbertSearchVectorStore) -> None:
    retriever = SbertSearchRetriever(store=store, k=2)
    queries = ["sea", "sand", "herons fish"]
    expected = [retriever.invoke(query) for query in queries]
    heard = _Heard()
    assert retriever.batch(queries) == expected
    assert retriever.batch(queries, {"callbacks": [heard]}) == expected
    assert sorted(heard.queries) == sorted(queries)
    assert asyncio.run(retriever.abatch(queries)) == expected
    heard.queries.clear()
    assert retriever.batch(queries, [{}, {"callbacks": [heard]}, {}]) == expected
    assert heard.queries == queries[1:2]
    with pytest.raises(ValueError, match="2 configs for 3 inputs"):
        retriever.batch(queries, [{}, {}])
    assert retriever.batch([]) == retriever.batch([], [{}]) == []
    assert [len(found) for found in retriever.batch(queries, k=1)] == [1, 1, 1]
    (found, error) = retriever.batch(["sea", " "], return_exceptions=True)
    assert found == expected[0]
    assert isinstance(error, QueryError)


def test_a_batch_of_other_embeddings_finds_what_single_calls_find() -> None:
    store = SbertSearchVectorStore.from_texts(["a", "b", "c"], DeterministicFakeEmbedding(size=6))
    retriever = SbertSearchRetriever(store=store, k=2, mode="dense")
    assert retriever.batch(["a", "c"]) == [retriever.invoke("a"), retriever.invoke("c")]
