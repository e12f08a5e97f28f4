"""What a search costs: hybrid beside dense, each stage, client threads, the engine beside FAISS.

    python benchmarks/bench_search.py [--quick] [--out F.json]

100,000 paragraphs of Wikipedia (with SBERT_SEARCH_DATA; else sentences over and over) with vectors
of hashed words, so that no model's time hides that of the search. Questions are those of SQuAD.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import faiss
import numpy as np
from common import Figure, Results, arguments, compare, rate, repeats_of, seconds
from texts import paragraphs, squad_questions

from sbert_search.embedding.hashing import HashingEmbedder
from sbert_search.index.build import BuildSettings
from sbert_search.index.index import Index
from sbert_search.index.spec import IndexSpec
from sbert_search.records import Query
from sbert_search.search.asking import MODES
from sbert_search.search.dense import nearest_documents
from sbert_search.search.engine import SearchEngine
from sbert_search.search.fusion import Fusion, fuse
from sbert_search.search.hits import read_hits
from sbert_search.search.words import matching_documents

K = 10
BATCH = 100


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    results = Results(options)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "corpus.jsonl"
        write_corpus(source, 20_000 if options.quick else 100_000)
        asked = squad_questions(100 if options.quick else 500)
        index = built(source, "Flat")
        measure_modes(results, SearchEngine(index, HashingEmbedder()), asked, options)
        measure_stages(results, index, asked)
        measure_threads(results, SearchEngine(index, HashingEmbedder()), asked)
        for factory in ("Flat",) if options.quick else ("Flat", "HNSW32"):
            measure_faiss(results, built(source, factory), asked, options)
    results.write()


def write_corpus(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(paragraphs(count)):
            file.write(json.dumps({"_id": str(number), "text": text}) + "\n")


def built(source: Path, factory: str) -> Index:
    out = source.with_name(f"{factory}.index")
    if not out.exists():
        settings = BuildSettings(spec=IndexSpec(factory=factory))
        Index.build(source, out=out, model=HashingEmbedder(), settings=settings)
    return Index.open(out)


def measure_modes(
    results: Results, engine: SearchEngine, asked: Sequence[str], options: argparse.Namespace
) -> None:
    """Latency of one question after another, to hits with their texts."""

    def median_ms(mode: str) -> Callable[[], float]:
        return lambda: quantiles_ms(asked, lambda text: engine.search(text, K, mode=mode))[0]

    for mode in ("hybrid", "lexical"):
        figure = compare(
            median_ms(mode), median_ms("dense"), unit="ms", repeats=repeats_of(options)
        )
        results.add(f"{mode}_p50_against_dense", figure)


def measure_stages(results: Results, index: Index, asked: Sequence[str]) -> None:
    """Median and 99th percentile of each stage of a hybrid search."""
    snapshot, depth, embedder = index.state, Fusion().depth, HashingEmbedder()
    vectors = dict(zip(asked, embedder.encode_query(asked), strict=True))
    near = {text: nearest_documents(snapshot, vectors[text][None], depth)[0] for text in asked}
    words = {text: matching_documents(snapshot, [text], depth)[0] for text in asked}
    fused = {text: fuse(near[text], words[text], Fusion()).first(K) for text in asked}
    stages: dict[str, Callable[[str], object]] = {
        "embed": lambda text: embedder.encode_query([text]),
        "dense": lambda text: nearest_documents(snapshot, vectors[text][None], depth),
        "lexical": lambda text: matching_documents(snapshot, [text], depth),
        "fuse": lambda text: fuse(near[text], words[text], Fusion()).first(K),
        "read": lambda text: read_hits(snapshot, fused[text]),
    }
    for name, work in stages.items():
        median, late = quantiles_ms(asked, work)
        results.add(f"stage_{name}_p50", Figure(median, "ms"))
        results.add(f"stage_{name}_p99", Figure(late, "ms"))


def measure_threads(results: Results, engine: SearchEngine, asked: Sequence[str]) -> None:
    """Questions a second from several client threads on one engine."""
    for mode in MODES:
        ask = partial(engine.search, k=K, mode=mode)
        for n_threads in (1, 4, 16):
            with ThreadPoolExecutor(n_threads) as pool:
                per_second = rate(len(asked), lambda: list(pool.map(ask, asked)))  # noqa: B023
            results.add(f"{mode}_{n_threads}_threads", Figure(per_second, "queries/s"))


def measure_faiss(
    results: Results, index: Index, asked: Sequence[str], options: argparse.Namespace
) -> None:
    """A hundred questions at once, from text to ids, beside FAISS on the same ready vectors."""
    engine, embedder = SearchEngine(index, HashingEmbedder()), HashingEmbedder()
    queries = [Query(str(n), text) for n, text in enumerate(islice(cycle(asked), BATCH))]
    vectors = embedder.encode_query([query.text for query in queries])
    spec = index.state.settings.spec
    bare = faiss.index_factory(embedder.dim, spec.factory, faiss.METRIC_INNER_PRODUCT)
    bare.add(np.concatenate([segment.vectors for segment in index.state.segments]))
    if spec.is_hnsw:
        faiss.ParameterSpace().set_index_parameter(bare, "efSearch", spec.ef_search)
    figure = compare(
        lambda: seconds(lambda: engine.run(queries, K)) * 1000,
        lambda: seconds(lambda: bare.search(vectors, K)) * 1000,
        unit="ms",
        repeats=5 * repeats_of(options),
    )
    results.add(f"batch_of_{BATCH}_{spec.factory}_against_faiss", figure)


def quantiles_ms(asked: Sequence[str], work: Callable[[str], object]) -> tuple[float, float]:
    """Median and 99th percentile of one call a question."""
    times = [seconds(partial(work, text)) * 1000 for text in asked]
    return float(np.median(times)), float(np.quantile(times, 0.99))


if __name__ == "__main__":
    main()
