"""The promises of an index hold through Haystack's document store and its components."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.components.writers import DocumentWriter
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy
from haystack.errors import FilterError
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search import records
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import CorpusError, ModelMismatch
from sbert_search.index.index import Index
from sbert_search.index.snapshot import Snapshot
from sbert_search.integrations.haystack import (
    SbertSearchBM25Retriever,
    SbertSearchDocumentEmbedder,
    SbertSearchDocumentStore,
    SbertSearchEmbeddingRetriever,
    SbertSearchHybridRetriever,
    SbertSearchRanker,
    SbertSearchTextEmbedder,
)
from sbert_search.integrations.records import Record
from sbert_search.records import RowCounts
from sbert_search.search.options import SearchOptions
from sbert_search.search.queries import QueryLike
from sbert_search.search.rerankers import Reranker
from sbert_search.search.results import Hits
from tests.integrations.killed import run_and_kill
from tests.models.tiny import TEXTS, tiny_cross_encoder

WORDS = ("tide", "dune", "moon")
DOCUMENTS = [
    Document(id=f"{word}{n}", content=f"{word} number {n + 10}", meta={"kind": word, "n": n})
    for n in range(8)
    for word in WORDS
]


def test_another_model_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "i")
    SbertSearchDocumentStore(path, "hashing").write_documents(DOCUMENTS)
    other = SbertSearchDocumentStore(path, "hashing:8")
    with pytest.raises(ModelMismatch, match="dim"):
        other.write_documents([Document(content="x")])
    with pytest.raises(ModelMismatch, match="dim"):
        SbertSearchHybridRetriever(other).run("tide")
    vectors = SbertSearchDocumentStore(str(tmp_path / "v"), embedding_dim=3)
    with pytest.raises(ModelMismatch, match="2 dimensions, and the store has 3"):
        vectors.write_documents([Document(content="x", embedding=[1.0, 2.0])])


@pytest.mark.parametrize(
    ("values", "types"), [([1, "a", 2], "int and str"), ([["a"]], "list"), ([{"a": 1}], "dict")]
)
def test_values_without_an_order_are_named(values: list[object], types: str) -> None:
    store = SbertSearchDocumentStore(model="hashing")
    store.write_documents([Document(content="x", meta={"mixed": [*values]})])
    for call in (store.get_metadata_field_min_max, store.get_metadata_field_unique_values):
        with pytest.raises(CorpusError, match=f"'mixed' cannot be compared: .* types {types}\\."):
            call("meta.mixed")


def test_duplicates_are_counted() -> None:
    store = SbertSearchDocumentStore(model="hashing")
    store.write_documents(DOCUMENTS)
    assert store.write_documents(DOCUMENTS, DuplicatePolicy.SKIP) == 0
    changed = [DOCUMENTS[0], Document(id="tide1", content="other")]
    assert store.write_documents(changed, DuplicatePolicy.OVERWRITE) == 2
    assert store.collection.written == RowCounts(indexed=24, replaced=1, duplicate=1)


def test_k_hits_whenever_k_match() -> None:
    store = SbertSearchDocumentStore(model="hashing")
    store.write_documents(DOCUMENTS)
    moons = {"field": "meta.kind", "operator": "==", "value": "moon"}
    found = SbertSearchHybridRetriever(store, top_k=8).run("tide number 11", filters=moons)
    assert [document.meta["kind"] for document in found["documents"]] == ["moon"] * 8


def test_a_delete_is_durable(tmp_path: Path) -> None:
    store = SbertSearchDocumentStore(str(tmp_path / "i"), "hashing")
    store.write_documents(DOCUMENTS)
    store.delete_documents(["tide0", "absent"])
    assert store.delete_by_filter({"field": "n", "operator": ">", "value": 0}) == 21
    assert [document.doc_id for document in Index.open(tmp_path / "i")] == ["dune0", "moon0"]


def test_an_embedding_does_not_change_how_other_documents_are_split() -> None:
    long = "the tides of the sea " * 400
    stores = [SbertSearchDocumentStore(model="hashing") for _ in range(2)]
    made = HashingEmbedder().encode_document(["dunes"])[0].tolist()
    stores[0].write_documents([Document(id="1", content=long)])
    documents = [Document(id="1", content=long), Document(id="2", content="x", embedding=made)]
    stores[1].write_documents(documents)
    first, second = (store.collection.index for store in stores)
    assert first is not None
    assert second is not None
    assert second.state.n_rows == first.state.n_rows + 1 > 2


def test_a_document_deleted_during_a_search_is_found_without_its_embedding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = SbertSearchDocumentStore(embedding_dim=2)
    vectors = {"a": [1.0, 0.0], "b": [0.0, 1.0]}
    store.write_documents([Document(id=n, content=n, embedding=v) for n, v in vectors.items()])
    search = store.collection.search

    def delete_then(query: QueryLike, options: SearchOptions) -> Hits:
        hits = search(query, options)
        Index.open(store.collection.path).delete(["a"])
        store.count_documents()  # as another thread may do, after which this one sees the commit
        return hits

    monkeypatch.setattr(store.collection, "search", delete_then)
    found = SbertSearchEmbeddingRetriever(store).run([1.0, 0.0])["documents"]
    assert [(each.id, each.embedding) for each in found] == [("a", None), ("b", [0.0, 1.0])]


def test_writes_and_deletes_outlive_a_killed_process(tmp_path: Path) -> None:
    run_and_kill(
        "from haystack import Document\n"
        "from sbert_search.integrations.haystack import *\n"
        "store = SbertSearchDocumentStore(sys.argv[1], 'hashing')\n"
        "rows = [Document(id=str(n), content=f'tide {n}', meta={'n': n}) for n in range(5)]\n"
        "store.write_documents(rows)\n"
        "store.delete_documents(['1', 'absent'])\n"
        "store.delete_by_filter({'field': 'n', 'operator': '==', 'value': 3})\n",
        tmp_path / "i",
    )
    store = SbertSearchDocumentStore(str(tmp_path / "i"), "hashing")
    found = SbertSearchHybridRetriever(store, top_k=9).run("tide")["documents"]
    assert sorted(document.id for document in found) == ["0", "2", "4"]
    assert Index.open(tmp_path / "i").check().problems == ()


def test_documents_come_back_whole() -> None:
    documents = [
        Document(content=None, blob=ByteStream(b"\x00\xff", mime_type="image/png")),
        Document(content="", meta={"a": {"b": {"c": 1}, "d": "2024-05-01"}, "l": [], "n": None}),
        Document(content="x", sparse_embedding=SparseEmbedding([1, 5], [0.5, 2.0])),
        Document(content="y", embedding=[0.0, 0.0, 0.0]),
        Document(content="z", embedding=[0.5, 0.25, 1.0], meta={"when": "2024-05-01T10:00:00"}),
    ]
    store = SbertSearchDocumentStore()
    store.write_documents(documents)
    found = store.filter_documents()
    assert found[4].embedding == pytest.approx([0.5, 0.25, 1.0], rel=1e-6)
    found[4] = replace(found[4], embedding=documents[4].embedding)
    assert found == documents
    nested = {"field": "meta.a.b.c", "operator": ">=", "value": 1}
    assert store.filter_documents(nested) == documents[1:2]
    before = {"field": "meta.a.d", "operator": "<", "value": "2024-05-01T00:00:01"}
    assert store.filter_documents(before) == documents[1:2]
    near = SbertSearchEmbeddingRetriever(store).run([1.0, 0.0, 0.0])["documents"]
    assert [document.content for document in near] == ["z"]
    for name in ("_vector", "_time.x", "_document", "_other"):
        with pytest.raises(CorpusError, match=name):
            store.write_documents([Document(content="q", meta={name: 1})])


def test_the_model_embeds_the_documents_that_come_without_an_embedding() -> None:
    store = SbertSearchDocumentStore(model="hashing:4")
    own = [0.0, 0.6, 0.8, 0.0]
    texts = {"a": "tide", "b": "dune", "c": "moon"}
    given_one = [
        Document(id=name, content=text, embedding=own if name == "b" else None)
        for name, text in texts.items()
    ]
    store.write_documents(given_one)
    assert store.collection.index is not None
    state = store.collection.index.state
    tide, moon = store.collection.embedder.encode_document(["tide", "moon"])
    assert state.vectors(state.lookup(["a", "b", "c"])) == pytest.approx(
        np.array([tide, own, moon])
    )


def test_an_update_of_metadata_keeps_given_embeddings(tmp_path: Path) -> None:
    Index.create(tmp_path / "i", model="hashing:4", on_truncate="chunk", chunk_tokens=4)
    store = SbertSearchDocumentStore(str(tmp_path / "i"))
    own, long = [0.0, 0.6, 0.8, 0.0], "The tide comes in. The tide goes out."
    store.write_documents([Document(id="given", content="dune", embedding=own)])
    store.write_documents([Document(id="long", content=long), Document(id="b", content="moon")])
    assert store.collection.index is not None
    before = store.collection.index.state
    assert store.update_by_filter({}, {"n": 1}) == 3
    after = store.collection.index.state
    names = ["given", "long", "b"]
    vectors = after.vectors(after.lookup(names))
    assert vectors == pytest.approx(before.vectors(before.lookup(names)))
    assert vectors[0] == pytest.approx(own)
    assert after.n_rows == before.n_rows > 3  # the long one keeps its passages
    assert [document.meta for document in store.filter_documents()] == [{"n": 1}] * 3
    again = Document(id="b", content="moon", meta={"n": 1})
    store.write_documents([again], DuplicatePolicy.OVERWRITE)
    assert store.collection.written.duplicate == 1


@pytest.mark.parametrize(
    ("operator", "found"), [("==", "a"), ("!=", "b"), ("in", "a"), ("not in", "b"), (">=", "a")]
)
def test_a_time_of_numpy_is_a_time_to_each_operator(operator: str, found: str) -> None:
    store = SbertSearchDocumentStore(embedding_dim=2)
    timed = Document(id="a", content="t", meta={"t": "2020-01-01T00:00:00"})
    store.write_documents([timed, Document(id="b", content="t")])
    time: object = np.datetime64("2020-01-01T00:00:00")
    value = [time] if operator.endswith("in") else time
    condition = {"field": "meta.t", "operator": operator, "value": value}
    assert [each.id for each in store.filter_documents(condition)] == [found]


@pytest.mark.parametrize("model", ["hashing:2", None])
def test_an_update_of_metadata_keeps_text_and_embedding_together(
    model: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "i")
    store, other = (SbertSearchDocumentStore(path, model) for _ in range(2))
    store.write_documents([Document(id="a", content="dune", embedding=[1.0, 0.0])])
    read = Snapshot.iter_documents

    def then_replace(snapshot: Snapshot) -> Iterator[records.Document]:
        yield from read(snapshot)
        monkeypatch.undo()
        theirs = Document(id="a", content="theirs", embedding=[0.0, 1.0])
        other.write_documents([theirs], DuplicatePolicy.OVERWRITE)

    monkeypatch.setattr(Snapshot, "iter_documents", then_replace)
    assert store.update_by_filter({}, {"n": 1}) == 1
    assert [document.content for document in store.filter_documents()] == ["dune"]
    assert store.collection.index is not None
    state = store.collection.index.state
    assert state.vectors(state.lookup(["a"])).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("model", ["hashing", None])
def test_a_document_that_another_process_writes_meanwhile_is_not_overwritten(
    model: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "i")
    store, other = (SbertSearchDocumentStore(path, model) for _ in range(2))
    store.write_documents([Document(id="a", content="dune")])
    get = store.collection.get

    def write_then(ids: list[str]) -> list[Record]:
        found = get(ids)
        theirs = [Document(id=name, content="theirs") for name in ids]
        other.write_documents(theirs, DuplicatePolicy.SKIP)
        return found

    monkeypatch.setattr(store.collection, "get", write_then)
    ours = [Document(id="b", content="ours")]
    assert store.write_documents(ours, DuplicatePolicy.SKIP) == 0
    ours = [Document(id="c", content="ours")]
    with pytest.raises(DuplicateDocumentError, match="'c' already exists"):
        store.write_documents(ours, DuplicatePolicy.FAIL)
    assert [d.content for d in store.filter_documents()] == ["dune", "theirs", "theirs"]


DATES = ["2024-01-01", "2024-01-01T00:00:00+00:00", "2023-12-31T23:30:00+00:00", "2025-06-01"]
VALUES = st.one_of(st.none(), st.sampled_from([*DATES, "a", "b", 1, 2, 1.5, True]))
FIELDS = st.sampled_from(["number", "text", "date", "absent"])
LEAF = st.one_of(
    st.builds(
        lambda field, operator, value: {"field": field, "operator": operator, "value": value},
        FIELDS,
        st.sampled_from(["==", "!="]),
        VALUES,
    ),
    st.builds(
        lambda field, operator, value: {"field": field, "operator": operator, "value": value},
        FIELDS,
        st.sampled_from(["in", "not in"]),
        st.lists(VALUES, max_size=3),
    ),
    st.builds(
        lambda operator, value: {"field": "meta.date", "operator": operator, "value": value},
        st.sampled_from(["<", "<=", ">", ">="]),
        st.sampled_from([*DATES, None]),
    ),
    st.builds(
        lambda operator, value: {"field": "meta.number", "operator": operator, "value": value},
        st.sampled_from(["<", "<=", ">", ">="]),
        st.sampled_from([1, 2, 1.5, None, np.int64(2)]),
    ),
)
FILTERS = st.recursive(
    LEAF,
    lambda inner: st.builds(
        lambda operator, conditions: {"operator": operator, "conditions": conditions},
        st.sampled_from(["AND", "OR", "NOT"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=5,
)


def _several() -> list[Document]:
    metas: list[dict[str, object]] = [
        {"number": 1, "text": "a", "date": DATES[0]},
        {"number": 2, "text": "b", "date": DATES[2]},
        {"number": 1.5, "date": DATES[3]},
        {"number": None, "text": "2025-06-01"},
        {},
    ]
    return [Document(id=str(n), content="t", meta=meta) for n, meta in enumerate(metas)]


@pytest.fixture(scope="module")
def both() -> tuple[SbertSearchDocumentStore, InMemoryDocumentStore]:
    stores = SbertSearchDocumentStore(embedding_dim=2), InMemoryDocumentStore()
    for store in stores:
        store.write_documents(_several())
    return stores


@given(FILTERS)
@settings(max_examples=300)
def test_filters_mean_what_they_mean_to_haystack(
    both: tuple[SbertSearchDocumentStore, InMemoryDocumentStore], filters: dict[str, object]
) -> None:
    ours, theirs = ([doc.id for doc in store.filter_documents(filters)] for store in both)
    assert ours == theirs


@pytest.mark.parametrize(
    "filters",
    [
        {"field": "content", "operator": "==", "value": "x"},
        {"field": "meta.n", "operator": "=~", "value": "x"},
        {"field": "meta.n", "operator": "==", "value": [1]},
        {"operator": "XOR", "conditions": []},
        {"operator": "AND", "conditions": ["meta.n"]},
    ],
)
def test_a_filter_that_cannot_be_used_is_refused(filters: dict[str, object]) -> None:
    store = SbertSearchDocumentStore(model="hashing")
    store.write_documents(DOCUMENTS[:1])
    with pytest.raises(FilterError):
        store.filter_documents(filters)


def test_a_pipeline_is_written_and_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "i")
    writing = Pipeline()
    writing.add_component("embedder", SbertSearchDocumentEmbedder("hashing"))
    writing.add_component("writer", DocumentWriter(SbertSearchDocumentStore(path)))
    writing.connect("embedder", "writer")
    reading = Pipeline()
    reading.add_component("embedder", SbertSearchTextEmbedder("hashing"))
    reading.add_component(
        "retriever",
        SbertSearchEmbeddingRetriever(
            SbertSearchDocumentStore(path),
            filters={"field": "meta.n", "operator": "<", "value": 3},
            top_k=2,
            filter_policy=FilterPolicy.MERGE,
        ),
    )
    reading.connect("embedder", "retriever")
    writing, reading = (Pipeline.loads(pipeline.dumps()) for pipeline in (writing, reading))
    written = writing.run({"embedder": {"documents": DOCUMENTS}})
    assert written == {"writer": {"documents_written": 24}}
    found = reading.run({"embedder": {"text": "tide number 11"}})["retriever"]["documents"]
    assert found[0].id == "tide1"
    assert len(found) == 2
    assert all(document.meta["n"] < 3 and document.score for document in found)


def test_the_retrievers_search_in_their_modes() -> None:
    store = SbertSearchDocumentStore(model="hashing")
    store.write_documents(DOCUMENTS)
    embedding = SbertSearchTextEmbedder("hashing").run("moon number 13")["embedding"]
    hybrid = SbertSearchHybridRetriever(store, top_k=1)
    for found in (
        SbertSearchBM25Retriever(store, top_k=1).run("moon number 13"),
        SbertSearchEmbeddingRetriever(store, top_k=1).run(embedding),
        hybrid.run("moon number 13"),
        hybrid.run("moon number 13", embedding),
    ):
        assert [document.id for document in found["documents"]] == ["moon3"]
    with pytest.raises(ValueError, match="top_k"):
        SbertSearchBM25Retriever(store, top_k=0)
    with pytest.raises(TypeError, match="SbertSearchDocumentStore"):
        SbertSearchBM25Retriever(InMemoryDocumentStore())


async def test_the_retrievers_search_without_blocking() -> None:
    store = SbertSearchDocumentStore(model="hashing")
    store.write_documents(DOCUMENTS)
    embedding = SbertSearchTextEmbedder("hashing").run("moon number 13")["embedding"]
    for found in (
        await SbertSearchBM25Retriever(store, top_k=1).run_async("moon number 13"),
        await SbertSearchEmbeddingRetriever(store, top_k=1).run_async(embedding),
        await SbertSearchHybridRetriever(store, top_k=1).run_async("moon number 13"),
    ):
        assert [document.id for document in found["documents"]] == ["moon3"]


def test_the_ranker_orders_by_its_scores(tmp_path: Path) -> None:
    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    documents = [Document(content=text, meta={"m": "red"}) for text in TEXTS]
    ranker = SbertSearchRanker(str(tmp_path / "saved"), "cpu", 3, ["m"], " | ")
    ranker = SbertSearchRanker.from_dict(ranker.to_dict())
    texts = [f"red | {text}" for text in TEXTS]
    expected = Reranker(tmp_path / "saved", device="cpu").rank("the cat", texts, 3)
    found = ranker.run("the cat", documents)["documents"]
    assert [document.content for document in found] == [TEXTS[e["corpus_id"]] for e in expected]
    assert [document.score for document in found] == pytest.approx([e["score"] for e in expected])


def test_the_document_embedder_puts_metadata_before_the_content() -> None:
    embedder = SbertSearchDocumentEmbedder("hashing", meta_fields_to_embed=["m", "absent"])
    (found,) = embedder.run([Document(content="b", meta={"m": "a"})])["documents"]
    query = SbertSearchTextEmbedder("hashing").run("a\nb")["embedding"]
    assert found.embedding == pytest.approx(query)


def test_metadata_beside_a_mapping_of_the_same_name_and_odd_dates_come_back() -> None:
    meta = {"a": {"b": 1, "c": {"d": "x"}}, "a.note": "y", "when": "0001-01-01T00:00:00+01:00"}
    store = SbertSearchDocumentStore(None, embedding_dim=2)
    store.write_documents([Document(id="1", content="t", meta=meta, embedding=[])])
    (back,) = store.filter_documents()
    assert back.meta == meta
    assert back.embedding is None
    found = {"field": "meta.a.c.d", "operator": "==", "value": "x"}
    assert [one.id for one in store.filter_documents(found)] == ["1"]
