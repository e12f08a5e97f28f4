"""The promises of an index hold through LangChain's vector store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import InMemoryVectorStore

from sbert_search.errors import ModelMismatch, QueryError
from sbert_search.index.index import Index
from sbert_search.integrations.langchain import SbertSearchEmbeddings, SbertSearchVectorStore
from sbert_search.records import RowCounts
from tests.integrations.killed import run_and_kill

TEXTS = [f"{word} number {n}" for n in range(8) for word in ("tide", "dune", "moon")]
METADATAS = [{"n": n, "kind": text.split()[0]} for n, text in enumerate(TEXTS)]


@pytest.fixture
def store() -> SbertSearchVectorStore:
    return SbertSearchVectorStore.from_texts(TEXTS, SbertSearchEmbeddings("hashing"), METADATAS)


def test_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "i"
    SbertSearchVectorStore.from_texts(["a"], SbertSearchEmbeddings("hashing"), path=path)
    with pytest.raises(ModelMismatch, match="dim"):
        SbertSearchVectorStore(SbertSearchEmbeddings("hashing:8"), path)


class _Shifted(DeterministicFakeEmbedding):
    """Another model of the same dimension."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return super().embed_documents([f"{text}!" for text in texts])


@pytest.mark.parametrize("other", [_Shifted(size=6), DeterministicFakeEmbedding(size=7)])
def test_other_embeddings_are_refused_at_the_first_use(
    tmp_path: Path, other: DeterministicFakeEmbedding
) -> None:
    path, embedding = tmp_path / "i", DeterministicFakeEmbedding(size=6)
    SbertSearchVectorStore.from_texts(["a", "b"], embedding, path=path)
    again = SbertSearchVectorStore(embedding, path)
    assert again.similarity_search("b", 1)[0].page_content == "b"
    with pytest.raises(ModelMismatch, match=type(other).__name__):
        SbertSearchVectorStore(other, path).similarity_search("b")
    with pytest.raises(ModelMismatch, match=type(other).__name__):
        SbertSearchVectorStore(other, path).max_marginal_relevance_search("b")
    with pytest.raises(ModelMismatch, match=type(other).__name__):
        SbertSearchVectorStore(other, path).max_marginal_relevance_search("b", mode="lexical")
    with pytest.raises(ModelMismatch):
        SbertSearchVectorStore(other, path).add_texts(["c"])


def test_duplicates_are_counted(store: SbertSearchVectorStore) -> None:
    ids = store.add_texts(["x", "y"], ids=["1", "2"])
    store.add_documents([Document(id="1", page_content="x"), Document(id="2", page_content="z")])
    assert ids == ["1", "2"]
    assert store.collection.written == RowCounts(indexed=len(TEXTS) + 2, replaced=1, duplicate=1)


def test_k_hits_whenever_k_match(store: SbertSearchVectorStore) -> None:
    found = store.similarity_search("tide number 1", k=8, filter={"kind": "moon"})
    assert [document.metadata["kind"] for document in found] == ["moon"] * 8
    found = store.similarity_search("tide", k=50, filter={"n": {"$gte": 20}})
    assert sorted(document.metadata["n"] for document in found) == [20, 21, 22, 23]


def test_a_delete_is_durable(tmp_path: Path) -> None:
    path = tmp_path / "i"
    store = SbertSearchVectorStore(SbertSearchEmbeddings("hashing"), path)
    store.add_texts(TEXTS, METADATAS, ids=[str(n) for n in range(len(TEXTS))])
    assert store.delete(["0", "absent"])
    store.delete(filter={"kind": "dune"})
    store.delete(["3", "5"], filter={"kind": "tide"})
    left = {document.doc_id for document in Index.open(path)}
    assert left == {str(n) for n, text in enumerate(TEXTS) if "dune" not in text} - {"0", "3"}
    store.delete()
    assert len(Index.open(path)) == 0


def test_writes_and_deletes_outlive_a_killed_process(tmp_path: Path) -> None:
    run_and_kill(
        "from sbert_search.integrations.langchain import *\n"
        "store = SbertSearchVectorStore(SbertSearchEmbeddings('hashing'), sys.argv[1])\n"
        "ids = [str(n) for n in range(5)]\n"
        "store.add_texts([f'tide {n}' for n in ids], [{'n': int(n)} for n in ids], ids=ids)\n"
        "store.delete(['1', 'absent'])\n"
        "store.delete(filter={'n': 3})\n",
        tmp_path / "i",
    )
    store = SbertSearchVectorStore(SbertSearchEmbeddings("hashing"), tmp_path / "i")
    found = store.similarity_search("tide", k=9)
    assert sorted(document.id or "" for document in found) == ["0", "2", "4"]
    assert Index.open(tmp_path / "i").check().problems == ()


def test_an_index_that_exists_serves_langchain(tmp_path: Path) -> None:
    rows = [{"_id": "a", "title": "Tides", "text": "The moon pulls.", "year": 2020}]
    Index.build(rows, out=tmp_path / "i", model="hashing")
    store = SbertSearchVectorStore(path=tmp_path / "i")
    (found,) = store.similarity_search("moon", mode="hybrid", filter="year > 2000")
    assert found == Document(
        id="a", page_content="The moon pulls.", metadata={"title": "Tides", "year": 2020}
    )
    assert len(store.embeddings.embed_query("moon")) == 384


def test_mmr_and_scores_are_those_of_langchains_own_store() -> None:
    embedding = DeterministicFakeEmbedding(size=12)
    ours = SbertSearchVectorStore.from_texts(TEXTS, embedding, METADATAS)
    theirs = InMemoryVectorStore.from_texts(TEXTS, embedding, METADATAS)
    for lambda_mult in (0.0, 0.3, 1.0):
        ours_found, theirs_found = (
            store.max_marginal_relevance_search("a", k=5, fetch_k=12, lambda_mult=lambda_mult)
            for store in (ours, theirs)
        )
        assert [d.metadata["n"] for d in ours_found] == [d.metadata["n"] for d in theirs_found]
    vector = embedding.embed_query("a")
    assert [d.metadata for d in ours.similarity_search_by_vector(vector)] == [
        d.metadata for d in theirs.similarity_search_by_vector(vector)
    ]
    scored = zip(
        ours.similarity_search_with_score("a", 9),
        theirs.similarity_search_with_score("a", 9),
        strict=True,
    )
    for (mine, my_score), (yours, your_score) in scored:
        assert mine.metadata == yours.metadata
        assert my_score == pytest.approx(your_score, abs=1e-6)
    hybrid = ours.similarity_search("tide number 3", 1, mode="hybrid")
    assert len(hybrid) == 1


def test_relevance_scores_are_between_0_and_1(store: SbertSearchVectorStore) -> None:
    scores = [score for _, score in store.similarity_search_with_relevance_scores("tide", k=24)]
    assert min(scores) == 0.0
    assert 0.5 < max(scores) <= 1.0
    dot = SbertSearchVectorStore(SbertSearchEmbeddings("hashing"), metric="dot")
    dot.add_texts(["a"])
    with pytest.raises(QueryError, match="metric dot"):
        dot.similarity_search_with_relevance_scores("a")


def test_the_indexing_api_adds_only_what_changed(store: SbertSearchVectorStore) -> None:
    manager = InMemoryRecordManager("tests")
    manager.create_schema()

    def run(*texts: str) -> dict[str, int]:
        documents = [Document(page_content=text, metadata={"source": text[0]}) for text in texts]
        done = index(
            documents, manager, store, cleanup="full", source_id_key="source",
            key_encoder="sha256",
        )  # fmt: skip
        return {name: count for name, count in done.items() if count}

    assert run("a1", "b1") == {"num_added": 2}
    assert run("a1", "b2") == {"num_added": 1, "num_skipped": 1, "num_deleted": 1}
    assert len(store.collection) == len(TEXTS) + 2


def test_wrong_numbers_of_arguments_are_refused(store: SbertSearchVectorStore) -> None:
    with pytest.raises(ValueError, match="2 texts and 1 ids"):
        store.add_texts(["a", "b"], ids=["1"])
    with pytest.raises(ValueError, match="2 texts and 0 ids"):
        store.add_texts(["a", "b"], ids=[])
    with pytest.raises(ValueError, match="1 texts and 2 metadatas"):
        store.add_texts(["a"], [{}, {}])
    with pytest.raises(QueryError, match="either filter or where"):
        store.similarity_search("a", filter={"n": 1}, where="n = 1")
    assert store.max_marginal_relevance_search("a", filter={"n": 999}) == []
    assert np.isfinite(store.embeddings.embed_documents(["a"])).all()


def test_an_empty_filter_deletes_nothing(store: SbertSearchVectorStore) -> None:
    with pytest.raises(QueryError, match="The filter is empty; leave it out to delete all"):
        store.delete(filter={})
    with pytest.raises(QueryError, match="The filter is empty; leave it out to delete all"):
        store.delete(filter="")
    assert len(store.similarity_search("tide", 99)) == len(TEXTS)
    store.delete()
    assert store.similarity_search("tide", 99) == []


def test_diverse_hits_come_from_any_mode_and_reranker() -> None:
    class Longest:
        def predict(self, pairs: list[tuple[str, str]], **_: object) -> list[float]:
            return [float(len(text)) for _, text in pairs]

    made = SbertSearchVectorStore(SbertSearchEmbeddings("hashing"), None, reranker=Longest())
    made.add_texts(TEXTS, METADATAS)
    found = made.max_marginal_relevance_search("tide", 3, mode="hybrid")
    assert len(found) == 3


def test_operators_of_a_query_work_with_embeddings_of_another_library() -> None:
    made = SbertSearchVectorStore(DeterministicFakeEmbedding(size=16))
    made.add_texts(["the tide rises", "the sand is dry", "dry tide"])
    found = made.similarity_search("+dry tide", 3, syntax="operators")
    assert {document.page_content for document in found} == {"the sand is dry", "dry tide"}
    assert made.hits("tide", 1).query == "tide"
    with pytest.raises(QueryError):
        made.similarity_search(" ", 1)


def test_scores_that_are_no_cosines_are_no_relevance_scores(store: SbertSearchVectorStore) -> None:
    found = store.similarity_search_with_relevance_scores("tide number 3", 2)
    assert 0.5 < found[0][1] <= 1
    with pytest.raises(QueryError, match="Only a dense search without a reranker has relevance"):
        store.similarity_search_with_relevance_scores("tide", 2, mode="lexical")
