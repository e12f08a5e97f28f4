"""Cost of a search: hybrid against dense, each stage, client threads, and batches against FAISS.

    python benchmarks/bench_search.py [--quick] [--out F.json]

A hybrid search fuses the hits of a dense search (nearest vectors) and of a lexical search (BM25).
The index has 100,000 paragraphs of Wikipedia (--quick: 20,000), and the queries are questions of
SQuAD. Without SBERT_SEARCH_DATA, the documents are repeated sentences, and the queries first lines,
of docstrings of Python's library. Vectors are made by hashing words, so that the time of a model
does not hide that of the search. The latency of searches whose queries a model embeds is measured
as well.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import faiss
import numpy as np
from common import Figure, Results, arguments, compare, paired, repeats_of, seconds
from texts import paragraphs, squad_questions

from sbert_search import Embedder
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.index import Index
from sbert_search.index.settings import IndexSpec
from sbert_search.records import Query
from sbert_search.search.candidates import candidates_of, matching_documents, nearest_documents
from sbert_search.search.engine import SearchEngine
from sbert_search.search.fusion import Candidates, fuse
from sbert_search.search.hits import read_hits
from sbert_search.search.options import MODES, Fusion

K = 10
BATCH = 100  # queries


def main() -> None:
    """Measure, print the figures and write the result file."""
    options = arguments(__doc__.splitlines()[0]).parse_args()
    results = Results(options)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "corpus.jsonl"
        write_corpus(source, 20_000 if options.quick else 100_000)
        asked = squad_questions(50 if options.quick else 300)
        for factory in ("Flat",) if options.quick else ("Flat", "HNSW32"):
            measure(results, built(source, factory), asked)


def measure(results: Results, index: Index, asked: Sequence[str]) -> None:
    """Run all measurements on one index."""
    name = index.state.settings.spec.factory
    for model, embedder in (("", HashingEmbedder()), ("_with_model", ModelTimed())):
        measure_modes(results, f"{name}{model}", SearchEngine(index, embedder), asked)
    measure_stages(results, name, index, asked)
    measure_threads(results, name, SearchEngine(index, HashingEmbedder()), asked)
    measure_faiss(results, name, index, asked)


class ModelTimed(HashingEmbedder):
    """Returns vectors of hashed words, but runs all-MiniLM-L6-v2 on each query before.

    A search with it finds the same hits as with hashing alone, and takes the model's time as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self._model = Embedder()

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Embed the texts with the model, then return other vectors."""
        self._model.encode_query(tokens.texts)
        return super().encode_tokens(tokens)


class Ready(HashingEmbedder):
    """Returns vectors that were computed before the measurement."""

    def __init__(self, asked: Sequence[str]) -> None:
        super().__init__()
        self._vectors = dict(zip(asked, HashingEmbedder().encode(asked), strict=True))

    def tokenize(self, texts: Sequence[str], **_: Any) -> TokenizedTexts:
        """Return texts without tokens."""
        nothing = np.zeros(len(texts), np.int32)
        return TokenizedTexts(texts, "", [[]] * len(texts), nothing)

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Look up the vectors."""
        # The engine first embeds a few texts of its own, to check that this embedder made the
        # vectors of the index.
        if not self._vectors.keys() >= set(tokens.texts):
            return HashingEmbedder().encode(tokens.texts)
        return np.stack([self._vectors[text] for text in tokens.texts])


def write_corpus(path: Path, count: int) -> None:
    """Write paragraphs as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(paragraphs(count)):
            file.write(json.dumps({"_id": str(number), "text": text}) + "\n")


def built(source: Path, factory: str) -> Index:
    """Build an index of a FAISS factory, or open it if it exists."""
    out = source.with_name(f"{factory}.index")
    if not out.exists():
        settings = BuildSettings(spec=IndexSpec(factory=factory), on_truncate="warn")
        Index.build(source, out=out, model=HashingEmbedder(), settings=settings)
    return Index.open(out)


def measure_modes(results: Results, name: str, engine: SearchEngine, asked: Sequence[str]) -> None:
    """Measure the latency of single questions, from the question to hits with texts.

    Each question is asked in all modes before the next question, so that a drift of the machine's
    speed affects all modes equally.
    """
    rounds = []
    for _ in range(1 + repeats_of(results.options)):
        modes: dict[str, Callable[[str], object]] = {
            mode: partial(engine.search, k=K, mode=mode) for mode in MODES
        }
        rounds.append(times_ms(asked, modes))
    medians = {mode: [median(times[mode]) for times in rounds[1:]] for mode in MODES}
    for mode in ("hybrid", "lexical"):
        figure = paired(medians[mode], medians["dense"], unit="ms")
        results.add(f"{name}_{mode}_p50_against_dense", figure)
    for mode in MODES:
        late = median([float(np.quantile(times[mode], 0.99)) for times in rounds[1:]])
        results.add(f"{name}_{mode}_p99", Figure(late, "ms"))


def measure_stages(results: Results, name: str, index: Index, asked: Sequence[str]) -> None:
    """Measure the median and the 99th percentile of each stage of a hybrid search."""
    snapshot, depth, embedder, model = index.state, Fusion().depth, HashingEmbedder(), Embedder()
    vectors = dict(zip(asked, embedder.encode_query(asked), strict=True))

    def both(text: str) -> Candidates:
        return next(candidates_of(snapshot, [text], vectors[text][None], depth))

    found = {text: both(text) for text in asked}
    fused = {text: fuse(found[text], Fusion()).first(K) for text in asked}
    stages: dict[str, Callable[[str], object]] = {
        "embed_by_model": lambda text: model.encode_query([text]),
        "embed": lambda text: embedder.encode_query([text]),
        "dense": lambda text: nearest_documents(snapshot, vectors[text][None], depth),
        "lexical": lambda text: matching_documents(snapshot, [text], depth),
        "both": both,
        "fuse": lambda text: fuse(found[text], Fusion()).first(K),
        "read": lambda text: read_hits(snapshot, fused[text]),
    }
    for stage, times in times_ms(asked, stages).items():
        results.add(f"{name}_stage_{stage}_p50", Figure(median(times), "ms"))
        results.add(f"{name}_stage_{stage}_p99", Figure(float(np.quantile(times, 0.99)), "ms"))


def measure_threads(
    results: Results, name: str, engine: SearchEngine, asked: Sequence[str]
) -> None:
    """Measure questions a second and latency with several client threads on one engine.

    If n threads share fewer cores fairly, each query takes about n / cores times as long as a query
    of a single thread. This holds for the p50 and for the p99.
    """
    for mode in MODES:
        asks = [partial(engine.search, text, K, mode=mode) for text in asked]
        for n_threads in (1, 4, 16):
            start = perf_counter()
            with ThreadPoolExecutor(n_threads) as pool:
                times = [1000 * took for took in pool.map(seconds, asks)]
            per_second = len(asked) / (perf_counter() - start)
            line = f"{name}_{mode}_{n_threads}_threads"
            results.add(line, Figure(per_second, "queries/s"))
            results.add(f"{line}_p50", Figure(median(times), "ms"))
            results.add(f"{line}_p99", Figure(float(np.quantile(times, 0.99)), "ms"))


def measure_faiss(results: Results, name: str, index: Index, asked: Sequence[str]) -> None:
    """Compare a batch of `BATCH` questions, from texts to ids, with FAISS on the same vectors.

    The vectors of the questions are computed before the measurement. FAISS searches the same graph
    as the engine. If the index has no graph, the engine scans all vectors, and FAISS searches an
    IndexFlatIP of them.
    """
    texts = list(islice(cycle(asked), BATCH))
    queries, ready = [Query(str(n), text) for n, text in enumerate(texts)], Ready(texts)
    engine, vectors = SearchEngine(index, ready), HashingEmbedder().encode(texts)
    [found], [segment] = index.state.anns, index.state.segments
    bare: Any = found.index if found else faiss.IndexFlatIP(ready.dim)
    if found:
        ef_search = index.state.settings.spec.ef_search
        faiss.ParameterSpace().set_index_parameter(bare, "efSearch", ef_search)
    else:
        bare.add(segment.vectors)
    figure = compare(
        lambda: seconds(lambda: engine.run(queries, K, mode="dense")) * 1000,
        lambda: seconds(lambda: bare.search(vectors, K)) * 1000,
        unit="ms",
        repeats=5 * repeats_of(results.options),
    )
    results.add(f"{name}_batch_of_{BATCH}_against_faiss", figure)


def times_ms(
    asked: Sequence[str], works: Mapping[str, Callable[[str], object]]
) -> dict[str, list[float]]:
    """Time several functions alternately on each query."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for text in asked:
        for name, work in works.items():
            times[name].append(seconds(partial(work, text)) * 1000)
    return times


if __name__ == "__main__":
    main()
