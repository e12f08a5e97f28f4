"""What a user writes, with every public name: type checkers accept it and know every type.

It is checked and never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sbert_search import (
    AnisotropyReport,
    AnswerRecipe,
    AttentionMaps,
    BiEncoderRecipe,
    Boost,
    BuildSettings,
    CheckpointError,
    CheckReport,
    ClassifyRecipe,
    ClusterError,
    CommitUnknown,
    ConfigError,
    CorpusError,
    CorpusMap,
    CorruptIndex,
    CrossEncoderRecipe,
    Document,
    DriftReport,
    Embedder,
    ErrorReport,
    EvaluationError,
    ExchangeError,
    ExportReport,
    Facet,
    FacetRange,
    FieldNames,
    Fusion,
    HeadReport,
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
    MapSettings,
    ModelError,
    ModelLike,
    ModelMismatch,
    NoLexicalData,
    NotAnIndex,
    Page,
    Predictor,
    PretrainRecipe,
    Progress,
    ProgressCallback,
    ProgressDisplay,
    Query,
    QueryError,
    RayRunner,
    ReadSettings,
    Reranker,
    RowCounts,
    SbertSearchError,
    SearchEngine,
    SearchOptions,
    ShardedIndex,
    StageScore,
    SyncReport,
    TagRecipe,
    TextAnswer,
    TextEmbedder,
    TextEntities,
    TextEntity,
    TextLabel,
    TrainingError,
    TuneReport,
    TuneSettings,
    UnfinishedBuild,
    VariantsRecipe,
    VariantsReport,
    WeightsError,
    analyze_anisotropy,
    analyze_attention,
    analyze_errors,
    analyze_heads,
    analyze_variants,
    export_index,
    import_index,
    load_recipe,
    map_index,
    open_index,
    pretrain,
    save_with_map,
    set_progress,
    train_answerer,
    train_bi_encoder,
    train_classifier,
    train_cross_encoder,
    train_tagger,
    write_errors,
    write_map,
)

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
    sharded = ShardedIndex.build("corpus.jsonl", out="my.shards", model=model, n_shards=8)
    assert_type(sharded, ShardedIndex)
    assert_type(open_index("my.shards", wait_s=5.0), Index)
    assert_type(sharded.n_shards, int)
    Index.build("library.sqlite", query="SELECT id, body AS text FROM books")
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
    SearchOptions(boost=[Boost("day", 0.5, "recency", half_life_days=30)])
    facets = engine.facets("a question", ["kind"], where="year > 1", n=5)
    assert_type(facets, dict[str, Facet])
    assert_type(facets["kind"].ranges, tuple[FacetRange, ...])
    assert_type(hits[0].stages, Mapping[str, StageScore])
    document = Document("d1", hits[0].text, metadata=hits[0].metadata)
    assert_type(document.full_text, str)
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


def predict(index: Index) -> None:
    predictor = Predictor("a-classifier", device="cpu", precision="fp32")
    assert_type(predictor.classify(["a text", ("a text", "another")]), list[TextLabel])
    found = predictor.tag(["a text"])
    assert_type(found, list[TextEntities])
    assert_type(found[0].entities, tuple[TextEntity, ...])
    assert_type(predictor.tag_words([["a", "text"]]), list[list[str]])
    assert_type(predictor.answer([("a question", "a text")]), list[TextAnswer])
    for prediction in predictor.predict(["a text"]):
        assert_type(prediction.to_row(), dict[str, object])
    engine = SearchEngine(index, reader=Predictor("a-reader"))
    assert_type(engine.search("a question", answer_depth=3)[0].answer, HitAnswer | None)


def train() -> None:
    recipe = load_recipe(BiEncoderRecipe, "bi-encoder", "mnrl-nli", ["seed=1"])
    assert_type(recipe, BiEncoderRecipe)
    assert_type(train_bi_encoder(recipe, Path("run")).last, Path)
    pairs = load_recipe(CrossEncoderRecipe, "cross-encoder", "nli")
    train_cross_encoder(pairs, Path("run"), resume=True)
    reviews = load_recipe(ClassifyRecipe, "classify", "sst2")
    train_classifier(reviews, Path("run"), resume=True)
    train_tagger(load_recipe(TagRecipe, "tag", "wnut17"), Path("run"))
    train_answerer(load_recipe(AnswerRecipe, "qa", "squad"), Path("run"))
    pretrain(load_recipe(PretrainRecipe, "pretrain", "bert-tiny"), Path("run"))


def exchange(index: Index) -> None:
    report = export_index(index, "parquet", "a.parquet", columns=["year"])
    assert_type(report, ExportReport)
    assert_type(report.query, str)
    assert_type(import_index("a.parquet", "b.index", model="a-model", metric="dot"), Index)


def analyze(index: Index) -> None:
    drawn = map_index(index, settings=MapSettings(points=1000), clusters=5, queries=["a question"])
    assert_type(drawn, CorpusMap)
    assert_type(drawn.layout, Floats)
    assert_type(drawn.groups(), list[list[int]])
    assert_type(write_map(drawn, "map", parquet=True), list[Path])
    report = analyze_anisotropy("a-model", ["a text"], sts=["pairs.tsv"], most_texts=100, seed=1)
    assert_type(report, AnisotropyReport)
    assert_type(report.layers[0].token_cosine, float)
    assert_type(report.write("runs"), list[Path])
    save_with_map("a-model", report.remedies["whitening"], "whitened")
    maps = analyze_attention("a-model", "a text", "another", device="cpu")
    assert_type(maps, AttentionMaps)
    assert_type(maps.heads[0].entropy, float)
    assert_type(analyze_heads("a-model", ["a text"], sts="pairs.tsv"), HeadReport)
    errors = analyze_errors("runs/scifact.json", data="data", worst=10)
    assert_type(errors, list[ErrorReport])
    assert_type(errors[0].slices[0].worse, bool)
    assert_type(write_errors(errors, "runs/errors"), list[Path])
    settings = VariantsRecipe(corpus=("texts",), held_out=("others",), tokens=1_000_000)
    assert_type(settings.ordered, list[str])
    compared = analyze_variants("variants.toml", "runs/variants", seeds=2, minutes=60)
    assert_type(compared, VariantsReport)
    assert_type(compared.tables["tokens"]["bert"]["held-out MLM loss"].mean, float)


def progress() -> None:
    def show(state: Progress) -> None:
        assert_type(state.done, int)
        assert_type(state.total, int | None)

    callback: ProgressCallback = show
    before: ProgressDisplay = set_progress(callback)
    set_progress("off")
    set_progress(before)


def failures() -> list[type[SbertSearchError]]:
    return [
        *(CheckpointError, CommitUnknown, ConfigError, CorpusError, CorruptIndex, EvaluationError),
        ExchangeError,
        *(IndexLocked, IndexStoreError, ModelError, ModelMismatch, NoLexicalData, NotAnIndex),
        *(ClusterError, LostShards, QueryError, TrainingError, UnfinishedBuild, WeightsError),
    ]


def cluster(corpus: Path, out: Path) -> None:
    with RayRunner("10.0.0.1:6379", workers=3) as runner:
        assert_type(runner, RayRunner)
        assert_type(Index.build(corpus, out=out, runner=runner), Index)
