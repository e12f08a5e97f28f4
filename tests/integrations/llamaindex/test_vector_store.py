"""The vector store means what ``SimpleVectorStore`` means, and keeps the promises of an index."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from sbert_search.errors import CorpusError, ModelMismatch, QueryError
from sbert_search.index.index import Index
from sbert_search.integrations.llamaindex import (
    SbertSearchEmbedding,
    SbertSearchRerank,
    SbertSearchVectorStore,
)
from sbert_search.records import RowCounts
from sbert_search.search.rerankers import Reranker
from tests.integrations.killed import run_and_kill
from tests.models.tiny import TEXTS, tiny_cross_encoder

DIM = 6
TEXT_VALUES = ["tide", "Tide pool", "dune", "", "100% _"]
ITEMS = ["a", "b", "c"]
OPERATORS = list(FilterOperator)


def _node(rng: random.Random, number: int) -> TextNode:
    metadata: dict[str, object] = {}
    for name, value in (
        ("n", rng.randint(-2, 2)),
        ("x", rng.choice([-0.5, 0.0, 1.5, 2.0])),
        ("s", rng.choice(TEXT_VALUES)),
        ("l", rng.sample(ITEMS, rng.randint(0, 3))),
        ("flag", rng.random() < 0.5),
        ("none", None),
    ):
        if rng.random() < 0.7:
            metadata[name] = value
    vector = np.random.default_rng(rng.randrange(1 << 30)).normal(size=DIM)
    node = TextNode(
        id_=f"node{number}", text=f"text {number}", metadata=metadata, embedding=vector.tolist()
    )
    source = RelatedNodeInfo(node_id=f"doc{number % 5}")
    node.relationships[NodeRelationship.SOURCE] = source
    return node


def _filter(rng: random.Random) -> MetadataFilter:
    operator = rng.choice(OPERATORS)
    numbers = ["n", "x", "flag"]
    texts = ["s", "absent"]
    if operator in (FilterOperator.GT, FilterOperator.GTE, FilterOperator.LT, FilterOperator.LTE):
        name = rng.choice([*numbers, "s"])
        value: object = rng.choice(TEXT_VALUES) if name == "s" else rng.choice([-1, 0, 1, 1.5])
    elif operator in (FilterOperator.IN, FilterOperator.NIN):
        name = rng.choice([*numbers, *texts])
        pool: list[object] = [*TEXT_VALUES] if name in texts else [-1, 0, 1]
        value = rng.sample(pool, rng.randint(0, 2))
    elif operator in (FilterOperator.ANY, FilterOperator.ALL):
        name = rng.choice(["l", "s"])
        least = int(operator == FilterOperator.ALL)  # all of nothing: see the documentation
        value = rng.sample(ITEMS if name == "l" else TEXT_VALUES, rng.randint(least, 2))
    elif operator == FilterOperator.CONTAINS:
        name = rng.choice(["l", "s"])
        value = rng.choice(ITEMS if name == "l" else ["ti", "%", "pool", ""])
    elif operator in (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE):
        name, value = rng.choice(texts), rng.choice(["ti", "TI", "_", "pool"])
    elif operator == FilterOperator.IS_EMPTY:
        name, value = rng.choice(["n", "s", "l", "none", "absent"]), None
    else:
        name = rng.choice([*numbers, *texts, "none"])
        value = rng.choice([*TEXT_VALUES, -1, 0, 1, 1.5])
    return MetadataFilter(key=name, value=value, operator=operator)


def _filters(rng: random.Random) -> MetadataFilters | None:
    if rng.random() < 0.1:
        return None
    several = [_filter(rng) for _ in range(rng.randint(1, 3))]
    return MetadataFilters(filters=several, condition=rng.choice(list(FilterCondition)))


def _query(rng: random.Random) -> VectorStoreQuery:
    vector = np.random.default_rng(rng.randrange(1 << 30)).normal(size=DIM)
    return VectorStoreQuery(
        query_embedding=vector.tolist(),
        similarity_top_k=rng.randint(1, 12),
        filters=_filters(rng),
        node_ids=[f"node{n}" for n in rng.sample(range(60), 20)] if rng.random() < 0.2 else None,
        mode=rng.choice([VectorStoreQueryMode.DEFAULT] * 3 + [VectorStoreQueryMode.MMR]),
    )


@pytest.mark.parametrize("seed", range(4))
def test_2000_random_operations_give_what_the_simple_store_gives(seed: int) -> None:
    rng = random.Random(seed)
    ours, theirs = SbertSearchVectorStore(), SimpleVectorStore()
    used: set[FilterOperator] = set()
    for step in range(500):
        chance = rng.random()
        if step == 0 or chance < 0.05:
            nodes = [_node(rng, rng.randrange(60)) for _ in range(rng.randint(20, 30))]
            unique = {node.node_id: node for node in nodes}
            for store in (ours, theirs):
                assert store.add(list(unique.values())) == list(unique)
        elif chance < 0.07:
            name = f"doc{rng.randrange(6)}"
            ours.delete(name)
            theirs.delete(name)
        elif chance < 0.09:
            ids = [f"node{n}" for n in rng.sample(range(60), 5)]
            filters = _filters(rng) if rng.random() < 0.5 else None
            ours.delete_nodes(ids, filters)
            theirs.delete_nodes(ids, filters)
        else:
            query = _query(rng)
            settings = {}
            if query.mode == VectorStoreQueryMode.MMR:
                settings = {"mmr_threshold": rng.choice([0.2, 0.5, 1.0]), "mmr_prefetch_k": 100}
            used |= {each.operator for each in query.filters.filters} if query.filters else set()
            if theirs.data.embedding_dict:
                mine, yours = ours.query(query, **settings), theirs.query(query, **settings)
                assert mine.ids == yours.ids, query
                assert mine.similarities == pytest.approx(yours.similarities, abs=1e-5)
    assert len(ours.collection) == len(theirs.data.embedding_dict)
    assert used == set(OPERATORS)


def _store(path: Path | None = None) -> SbertSearchVectorStore:
    model = SbertSearchEmbedding("hashing")
    store = SbertSearchVectorStore(None if path is None else str(path), model)
    words = ("tide", "dune", "moon")
    nodes = [
        TextNode(id_=f"{word}{n}", text=f"{word} number {n + 10}", metadata={"kind": word, "n": n})
        for n in range(8)
        for word in words
    ]
    store.add(model(nodes))
    return store


def test_nodes_come_back_whole() -> None:
    rng = random.Random(7)
    nodes = [_node(rng, number) for number in range(10)]
    store = SbertSearchVectorStore()
    store.add(nodes)
    for node in nodes:
        node.embedding = None
    assert store.get_nodes() == nodes
    assert store.get_nodes(["node3", "absent"]) == nodes[3:4]
    result = store.query(VectorStoreQuery(query_embedding=[1.0] * DIM, similarity_top_k=20))
    assert sorted(result.ids) == sorted(node.node_id for node in nodes)
    store.clear()
    assert store.get_nodes() == []


def test_another_model_is_refused(tmp_path: Path) -> None:
    _store(tmp_path / "i")
    with pytest.raises(ModelMismatch, match="dim"):
        SbertSearchVectorStore(str(tmp_path / "i"), SbertSearchEmbedding("hashing:8"))
    with pytest.raises(CorpusError):
        SbertSearchVectorStore(str(tmp_path / "i")).add([TextNode(text="x", embedding=[1.0])])


def test_duplicates_are_counted() -> None:
    store = _store()
    model = SbertSearchEmbedding("hashing")
    store.add(model([TextNode(id_="a", text="x"), TextNode(id_="b", text="y")]))
    store.add(model([TextNode(id_="a", text="x"), TextNode(id_="b", text="z")]))
    assert store.collection.written == RowCounts(indexed=26, replaced=1, duplicate=1)


def test_k_hits_whenever_k_match() -> None:
    index = VectorStoreIndex.from_vector_store(_store(), SbertSearchEmbedding("hashing"))
    moons = MetadataFilters(filters=[MetadataFilter(key="kind", value="moon")])
    found = index.as_retriever(similarity_top_k=8, filters=moons).retrieve("tide number 11")
    assert [node.node.metadata["kind"] for node in found] == ["moon"] * 8


def test_a_delete_is_durable(tmp_path: Path) -> None:
    store = _store(tmp_path / "i")
    store.delete_nodes(["tide0", "absent"])
    above = MetadataFilter(key="n", value=0, operator=FilterOperator.GT)
    store.delete_nodes(filters=MetadataFilters(filters=[above]))
    assert [document.doc_id for document in Index.open(tmp_path / "i")] == ["dune0", "moon0"]
    for nothing in (None, MetadataFilters(filters=[])):
        with pytest.raises(QueryError, match="neither node_ids nor filters"):
            store.delete_nodes(filters=nothing)
    store.delete_nodes([])
    assert len(store.collection) == 2
    store.clear()
    assert len(store.collection) == 0


def test_mmr_chooses_among_at_least_as_many_nodes_as_it_returns() -> None:
    store = _store()
    vector = SbertSearchEmbedding("hashing").get_query_embedding("moon number 13")
    query = VectorStoreQuery(vector, 5, mode=VectorStoreQueryMode.MMR)
    for settings in ({"mmr_prefetch_k": 2}, {"mmr_prefetch_factor": 0.2}):
        assert len(store.query(query, **settings).ids) == 5


def test_writes_and_deletes_outlive_a_killed_process(tmp_path: Path) -> None:
    run_and_kill(
        "from llama_index.core.schema import TextNode\n"
        "from llama_index.core.vector_stores import MetadataFilter, MetadataFilters\n"
        "from sbert_search.integrations.llamaindex import *\n"
        "model = SbertSearchEmbedding('hashing')\n"
        "store = SbertSearchVectorStore(sys.argv[1], model)\n"
        "nodes = [TextNode(id_=str(n), text=f'tide {n}', metadata={'n': n}) for n in range(5)]\n"
        "store.add(model(nodes))\n"
        "store.delete_nodes(['1', 'absent'])\n"
        "third = MetadataFilters(filters=[MetadataFilter(key='n', value=3)])\n"
        "store.delete_nodes(filters=third)\n",
        tmp_path / "i",
    )
    model = SbertSearchEmbedding("hashing")
    store = SbertSearchVectorStore(str(tmp_path / "i"), model)
    query = VectorStoreQuery(model.get_query_embedding("tide"), similarity_top_k=9)
    assert sorted(store.query(query).ids) == ["0", "2", "4"]
    assert Index.open(tmp_path / "i").check().problems == ()


async def test_every_mode_finds_also_without_blocking() -> None:
    store = _store()
    vector = SbertSearchEmbedding("hashing").get_query_embedding("moon number 13")
    for mode in ("default", "sparse", "text_search", "hybrid", "semantic_hybrid", "mmr"):
        query = VectorStoreQuery(vector, 2, query_str="moon 13", mode=VectorStoreQueryMode(mode))
        result = await store.aquery(query)
        assert result.ids[0] == "moon3", mode
        assert result.nodes[0].get_content() == "moon number 13"
    for alpha, near in ((0.0, "dune5"), (1.0, "moon3")):
        query = VectorStoreQuery(
            vector, 1, query_str="dune 15", mode=VectorStoreQueryMode.HYBRID, alpha=alpha
        )
        assert store.query(query).ids == [near]
    default, half = (
        store.query(
            VectorStoreQuery(
                vector, 3, query_str="dune 15", mode=VectorStoreQueryMode.HYBRID, alpha=alpha
            )
        ).similarities
        for alpha in (None, 0.5)
    )
    assert default == half
    await store.adelete("None")
    await store.async_add([])
    assert await store.aget_nodes() == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (VectorStoreQuery([1.0], mode=VectorStoreQueryMode.SVM), "'svm' is not supported"),
        (VectorStoreQuery([1.0], mode=VectorStoreQueryMode.SPARSE), "needs query_str"),
        (VectorStoreQuery(query_str="x"), "needs query_embedding"),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused(query: VectorStoreQuery, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        _store().query(query)


@pytest.mark.parametrize(
    "wrong",
    [
        MetadataFilter(key="l", value=["a"]),
        MetadataFilter(key="n", value=1, operator=FilterOperator.IN),
        MetadataFilter(key="n", value=1, operator=FilterOperator.TEXT_MATCH),
    ],
)
def test_a_filter_that_cannot_be_used_is_refused(wrong: MetadataFilter) -> None:
    with pytest.raises(QueryError, match=f"'{wrong.key}'"):
        _store().get_nodes(filters=MetadataFilters(filters=[wrong]))


def test_an_index_that_exists_serves_llamaindex(tmp_path: Path) -> None:
    rows = [{"_id": "a", "title": "Tides", "text": "The moon pulls.", "year": 2020}]
    Index.build(rows, out=tmp_path / "i", model="hashing")
    (node,) = SbertSearchVectorStore(str(tmp_path / "i")).get_nodes()
    assert (node.node_id, node.get_content()) == ("a", "The moon pulls.")
    assert node.metadata == {"title": "Tides", "year": 2020}


def test_the_postprocessor_keeps_the_best_nodes(tmp_path: Path) -> None:
    from llama_index.core.schema import NodeWithScore

    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    reranker = Reranker(tmp_path / "saved", device="cpu", precision="fp32")
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in TEXTS]
    rerank = SbertSearchRerank(reranker=reranker, top_n=3, keep_retrieval_score=True)
    found = rerank.postprocess_nodes(nodes, QueryBundle("the cat"))
    expected = reranker.rank("the cat", TEXTS, 3)
    assert [node.score for node in found] == pytest.approx([each["score"] for each in expected])
    assert found[0].node.metadata == {"retrieval_score": 0.5}
    with pytest.raises(ValueError, match="query bundle"):
        rerank.postprocess_nodes(nodes)


async def test_texts_are_embedded_together_without_blocking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedding = SbertSearchEmbedding("hashing")
    kind = type(embedding.embedder)
    calls, encode = list[tuple[int, bool]](), kind.encode_document

    def counted(embedder: Any, texts: list[str]) -> Any:
        calls.append((len(texts), threading.current_thread() is threading.main_thread()))
        return encode(embedder, texts)

    monkeypatch.setattr(kind, "encode_document", counted)
    assert len(await embedding.aget_text_embedding_batch(["a", "b", "c"])) == 3
    assert calls == [(3, False)]
