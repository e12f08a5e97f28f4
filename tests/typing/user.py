"""What a user writes, with the public names of no wing: checkers accept it and know every type.

It is checked and never run. The names of a wing are in `tests/WING/user.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sbert_search import (
    BiEncoderRecipe,
    Boost,
    BuildSettings,
    CheckpointError,
    CheckReport,
    ClusterError,
    CommitUnknown,
    ConfigError,
    CorpusError,
    CorruptIndex,
    CrossEncoderRecipe,
    Document,
    DriftReport,
    Embedder,
    EvaluationError,
    ExchangeError,
    Facet,
    FacetRange,
    FieldNames,
    FineTuned,
    Fusion,
    Hit,
    HitAnswer,
    Hits,
    Index,
    IndexInfo,
    IndexLocked,
    IndexSpec,
    IndexStoreError,
    IngestReport,
    LexicalSettings,
    LostShards,
    MigrationPlan,
    MigrationReport,
    ModelError,
    ModelLike,
    ModelMismatch,
    NoLexicalData,
    NotAnIndex,
    Page,
    PretrainRecipe,
    Progress,
    ProgressCallback,
    ProgressDisplay,
    Query,
    QueryError,
    QueryModel,
    ReadSettings,
    Reranker,
    RowCounts,
    SbertSearchError,
    SearchEngine,
    SearchOptions,
    StageScore,
    SyncReport,
    TextEmbedder,
    TrainingError,
    TuneReport,
    TuneSettings,
    UnfinishedBuild,
    WeightsError,
    fine_tune,
    load_recipe,
    pretrain,
    set_memory_limit,
    set_progress,
    stdlib_documents,
    train_bi_encoder,
    train_cross_encoder,
)
from sbert_search.evaluate import Comparison, Evaluation, compare, evaluate, evaluate_run

Floats = NDArray[np.float32]


def embed(folder: Path) -> None:
    embedder = Embedder(folder, device="cpu", engine="native", precision="fp32")
    vectors = embedder.encode(["one text", "another"], normalize_embeddings=True)
    assert_type(vectors, Floats)
    assert_type(embedder.encode_query("a question", truncate_dim=64), Floats)
    assert_type(embedder.encode_document(["a text"], batch_size=8), Floats)
    assert_type(embedder.encode(["a text"], precision="binary"), NDArray[np.int8])
    assert_type(embedder.encode_query(["a text"], precision="uint8"), NDArray[np.uint8])
    assert_type(embedder.encode_document("a text", convert_to_tensor=True), Tensor)
    embedder.encode("a text", convert_to_numpy=False, precision="int8")
    assert_type(embedder.similarity(vectors, vectors), Floats)
    assert_type(embedder.dim, int)


def build(model: ModelLike) -> Index:
    settings = BuildSettings(
        spec=IndexSpec(factory="HNSW32"),
        lexical=LexicalSettings(language="none"),
        fields=FieldNames(text="body"),
    )
    index = Index.build(Path("corpus.jsonl"), out="my.index", model=model, settings=settings)
    assert_type(index, Index)
    report = index.upsert(["more.jsonl"], settings=ReadSettings(on_error="skip"), device="cpu")
    assert_type(report, IngestReport)
    assert_type(report.counts, RowCounts)
    index.add("more.csv", fields=FieldNames(text="body"), on_error="skip", allow_inexact=True)
    index.upsert(
        "papers.csv",
        fields=FieldNames(text=["abstract", "body"]),
        metadata_fields=["year"],
        column_types={"year": "int"},
    )
    sharded = Index.build("corpus.jsonl", out="my.shards", model=model, n_shards=8)
    assert_type(sharded, Index)
    assert_type(Index.open("my.shards", wait_s=5.0), Index)
    assert_type(sharded.n_shards, int)
    Index.build("library.sqlite", query="SELECT id, body AS text FROM books")
    index.upsert([{"_id": "a"}], partial=True, clear={"a": ["price"]})
    assert_type(index.delete(where="year < 2000"), int)
    assert_type(index.delete(12), int)
    assert_type(index.get("d1"), Document | None)
    assert_type(index.scroll(10, where="year > 2000"), Page)
    assert_type([document.doc_id for document in index if "d1" in index], list[str])
    assert_type(index.sample(3), list[Document])
    assert_type(index.check(), CheckReport)
    assert_type(Index.create("empty.index", model="hashing"), Index)
    assert_type(index.sync("notes", dry_run=True, on_truncate="chunk"), SyncReport)
    assert_type(index.root, Path | None)
    assert_type(index.info(), IndexInfo)
    assert_type(index.drift(), DriftReport)
    assert_type(index.tune(TuneSettings(recall=0.9), queries="queries.jsonl"), TuneReport)
    assert_type(index.matching_embedder(quick=True), TextEmbedder)
    index.backup("copy.index")
    assert_type(index.plan_migration("other-model"), MigrationPlan)
    assert_type(index.migrate("other-model", switch=False, max_minutes=5), MigrationReport)
    assert_type(index.roll_back(device="cpu").left, int)
    assert_type(index.drop_unused_vectors(), list[str])
    assert_type(index.add_query_model("small-model"), QueryModel)
    return index


def give_vectors(vectors: Floats, ids: list[str]) -> Index:
    assert_type(Index.from_vectors(vectors, ids=ids), Index)
    Index.from_vectors(np.eye(2), ids=np.arange(2), metric="dot", on_error="skip")
    rows = [{"_id": "a"}, {"_id": "b", "text": "a text"}]
    index = Index.build(rows, vectors=np.eye(2), metric="dot")
    assert_type(index.add(rows, vectors=vectors, on_error="skip"), IngestReport)
    index.upsert("rows.parquet", vectors="embedding")
    index.upsert("rows.jsonl", vectors=Path("vectors.npy"))
    return Index.from_texts(["a text"], vectors=[[0.5, 1.0]], model="a-model")


def search(index: Index) -> Hits:
    engine = SearchEngine(index, reranker=Reranker("a-cross-encoder"))
    options = SearchOptions(k=5, mode="hybrid", fusion=Fusion(dense_weight=0.7), where="year > 1")
    hits = engine.search("a question", options=options)
    assert_type(hits, Hits)
    assert_type(hits[0], Hit)
    assert_type(hits[:3], Hits)
    assert_type((hits.query, hits.mode), tuple[str, str])
    hits.to_pandas()
    hits.to_arrow()
    assert_type(engine.search("a question", k=10, mode="hybrid", where="year >= 2019"), Hits)
    assert_type(engine.search_many(["a question"], 3, rerank_depth=50), list[Hits])
    assert_type(engine.search(np.ones(384), mode="dense"), Hits)
    assert_type(engine.search("a question", vector=np.ones(384)), Hits)
    assert_type(engine.search_many(np.ones((2, 384)), 3), list[Hits])
    assert_type(engine.run([Query("q1", "a question")]), dict[str, dict[str, float]])
    assert_type(hits[0].score, float)
    engine.search("a", group_by="kind", group_size=2, diversity=0.3, boost=Boost("views", 0.2))
    engine.search(None, sort="-in_stock,price", fields=["title", "price"])
    SearchOptions(boost=[Boost("day", 0.5, "recency", half_life_days=30)])
    facets = engine.facets("a question", ["kind"], where="year > 1", n=5)
    assert_type(facets, dict[str, Facet])
    assert_type(facets["kind"].ranges, tuple[FacetRange, ...])
    assert_type(hits[0].stages, Mapping[str, StageScore])
    document = Document("d1", hits[0].text, metadata=hits[0].metadata)
    assert_type(document.full_text, str)
    assert_type(engine.search("a question", answer_depth=3)[0].answer, HitAnswer | None)
    return hits


async def search_in_a_thread(engine: SearchEngine) -> None:
    assert_type(await engine.asearch("a question", 3, mode="dense"), Hits)
    assert_type(await engine.asearch_many(["a question"], highlight=True), list[Hits])


def rerank() -> None:
    reranker = Reranker("a-cross-encoder", precision="auto")
    assert_type(reranker.predict([("a question", "a text")]), Floats)
    first = reranker.rank("a question", ["a text", "another"], top_k=1)[0]
    assert_type(first["corpus_id"], int)
    assert_type(first["score"], float)


def train() -> None:
    recipe = load_recipe(BiEncoderRecipe, "bi-encoder", "mnrl-nli", ["seed=1"])
    assert_type(recipe, BiEncoderRecipe)
    assert_type(train_bi_encoder(recipe, Path("run")).last, Path)
    tuned = fine_tune([{"query": "mill", "positive": "A mill."}], "run", epochs=1)
    assert_type(tuned, FineTuned)
    assert_type(evaluate(tuned.model, "pairs.csv"), Evaluation)
    assert_type(compare(evaluate(None, "data"), evaluate_run("a.trec", "qrels.txt")), Comparison)
    assert_type(set_memory_limit(1 << 30), int | None)
    assert_type(next(stdlib_documents()), Document)
    pairs = load_recipe(CrossEncoderRecipe, "cross-encoder", "nli")
    train_cross_encoder(pairs, Path("run"), resume=True)
    pretrain(load_recipe(PretrainRecipe, "pretrain", "bert-tiny"), Path("run"))


def progress() -> None:
    def show(state: Progress) -> None:
        assert_type(state.done, int)
        assert_type(state.total, int | None)

    callback: ProgressCallback = show
    before: ProgressDisplay = set_progress(callback)
    set_progress("off")
    set_progress(before)
    limit: int | None = set_memory_limit(4 << 30)
    set_memory_limit(limit)


def failures() -> list[type[SbertSearchError]]:
    return [
        *(CheckpointError, CommitUnknown, ConfigError, CorpusError, CorruptIndex, EvaluationError),
        ExchangeError,
        *(IndexLocked, IndexStoreError, ModelError, ModelMismatch, NoLexicalData, NotAnIndex),
        *(ClusterError, LostShards, QueryError, TrainingError, UnfinishedBuild, WeightsError),
    ]
