"""Latency of a search over 4 local shards, against one index of the same documents.

    python benchmarks/bench_shards.py [--quick] [--docs N] [--real] [--keep FOLDER] [--out F.json]

The documents have random words and clustered vectors of 384 dimensions (one million of them;
--quick: 60,000 of 64 dimensions). With --real they are 101,000 paragraphs of Wikipedia, whose
vectors are made by hashing words, and the queries are questions of SQuAD. Both indexes are
measured with an exact scan, and then with FAISS inverted lists. In the single index, a query visits
a 64th of these, or more where that gives a recall@10 below 0.95, the target of `index tune`. In the
shards it visits as many as give a recall that is at most 0.005 lower. Vectors of the queries are
given, so that no figure has the time of a model.

Each figure is the median of the latencies of all queries in ms: "ours" is the search over the
shards, and "peer" the search of the one index. Each query is asked of both in turn. The hits of
both, found by an exact scan, are compared, too: in how many queries they differ.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
from common import Figure, Results, arguments, paired, repeats_of, seconds
from numpy.typing import NDArray
from texts import paragraphs, squad_questions
from vectors import DIM, Clusters

from sbert_search import Index, SearchEngine
from sbert_search.base.progress import set_progress
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.settings import IndexSpec
from sbert_search.index.tuning.settings import lists_for
from sbert_search.records import Document
from sbert_search.search.options import SearchMode

N_SHARDS, K = 4, 10
RECALL, RECALL_LOST = 0.95, 0.005
N_DOCS, QUICK_DOCS, REAL_DOCS = 1_000_000, 60_000, 101_000
QUICK_DIM = 64
QUERIES, QUICK_QUERIES = 300, 100
VISITED = 1 / 64  # share of the inverted lists that a query visits at least
N_WORDS, TEXT_WORDS = 50_000, 40
REAL_BLOCK = 10_000

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Ask = Callable[[Index, int], object]


@dataclass(frozen=True, slots=True)
class Data:
    """Documents in blocks with their vectors, and queries.

    Attributes:
        dim: Dimensions of a vector.
        blocks: Yields documents and vectors.
        texts: The queries.
        vectors: Their vectors, (n_queries, dim).
    """

    dim: int
    blocks: Callable[[], Iterator[tuple[Sequence[Document], Floats]]]
    texts: Sequence[str]
    vectors: Floats


def main() -> None:
    """Build both indexes, measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--docs", type=int, help="number of documents")
    parser.add_argument("--real", action="store_true", help="paragraphs of Wikipedia")
    parser.add_argument("--keep", type=Path, help="folder for the indexes, which are used again")
    options = parser.parse_args()
    results = Results(options)
    set_progress("off")
    data, n_docs = real_data(options) if options.real else drawn_data(options)
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for spec_of, label in ((exact_spec, "exact"), (list_spec, "ANN")):
            pair = [made(folder, data, n_docs, n, spec_of) for n in (1, N_SHARDS)]
            if label == "ANN":
                results.add("recall@10 of ANN", match_recall(pair, data.vectors))
            else:
                count_differences(results, pair, data)
            measure(results, label, pair, data, repeats_of(options))


def measure(results: Results, label: str, pair: Sequence[Index], data: Data, repeats: int) -> None:
    """Compare searches; lexical ones only with an exact scan, since FAISS does not change them."""
    one, sharded = pair
    engines = {id(index): SearchEngine(index) for index in pair}

    def dense(index: Index, at: int) -> object:
        return index.state.search(data.vectors[at : at + 1], K)

    def searched(index: Index, at: int, mode: SearchMode) -> object:
        vector = None if mode == "lexical" else data.vectors[at]
        return engines[id(index)].search(data.texts[at], K, vector=vector, mode=mode)

    trials: dict[str, Ask] = {f"dense, {label}": dense}
    trials[f"dense hits, {label}"] = partial(searched, mode="dense")
    if label == "exact":
        trials["lexical hits"] = partial(searched, mode="lexical")
    trials[f"hybrid hits, {label}"] = partial(searched, mode="hybrid")
    for name, ask in trials.items():
        asked = range(len(data.texts))
        for index in pair:
            ask(index, 0)  # a warm-up
        rounds = [median_ms(ask, sharded, one, asked) for _ in range(repeats)]
        ours, peer = (list(values) for values in zip(*rounds, strict=True))
        results.add(name, paired(ours, peer, unit="ms"))


def count_differences(results: Results, pair: Sequence[Index], data: Data) -> None:
    """Compare exact dense, lexical and hybrid hits over the shards with those of the one index.

    Ids must be the same in the same order. Scores of dense hits must be equal, and those of lexical
    hits equal within 1e-6.
    """
    modes: tuple[SearchMode, ...] = ("dense", "lexical", "hybrid")
    for mode in modes:
        vectors = None if mode == "lexical" else data.vectors
        one, sharded = (
            SearchEngine(index).search_many(data.texts, K, vectors=vectors, mode=mode)
            for index in pair
        )
        differing = 0
        for ours, theirs in zip(sharded, one, strict=True):
            scores = [np.array([hit.score for hit in hits]) for hits in (ours, theirs)]
            within = {"dense": 0.0, "lexical": 1e-6, "hybrid": np.inf}[mode]
            alike = [hit.doc_id for hit in ours] == [hit.doc_id for hit in theirs]
            differing += not (alike and np.abs(scores[0] - scores[1]).max(initial=0) <= within)
        results.add(f"queries whose {mode} hits differ", Figure(differing, "queries"))


def median_ms(ask: Ask, ours: Index, peer: Index, asked: Sequence[int]) -> tuple[float, float]:
    """Ask each query of both indexes in turn; return both median times in ms."""
    times = [[seconds(partial(ask, index, at)) for index in (ours, peer)] for at in asked]
    mine, theirs = zip(*times, strict=True)
    return 1000 * median(mine), 1000 * median(theirs)


def recall(index: Index, vectors: Floats, nearest: Rows) -> float:
    """Return the mean share of the nearest rows that a search finds."""
    found = index.state.search(vectors, K)[1]
    pairs = zip(found.tolist(), nearest.tolist(), strict=True)
    return float(np.mean([len({*rows} & {*near}) / K for rows, near in pairs]))


def match_recall(pair: Sequence[Index], vectors: Floats) -> Figure:
    """Let queries visit as few lists of both indexes as reach the recall.

    That over the shards may be lower by `RECALL_LOST`. Return it, with the other as the peer.
    """
    one, sharded = pair
    target = visit_lists(one, vectors, RECALL)
    reached = visit_lists(sharded, vectors, target - RECALL_LOST)
    return Figure(reached, "", target, reached / target)


def visit_lists(index: Index, vectors: Floats, target: float) -> float:
    """Let a query visit as few lists as reach a recall; return the recall.

    The single index keeps the number of its spec if that is enough.
    """
    store = index.store
    nearest = nearest_rows(index, vectors)
    spec = store.snapshot.settings.spec
    nprobe = 1 if store.snapshot.is_sharded else spec.nprobe
    while True:
        tried = replace(spec, nprobe=nprobe)
        store.snapshot = store.snapshot.with_spec(tried)
        if (reached := recall(index, vectors, nearest)) >= target:
            return reached
        nprobe += 1


def nearest_rows(index: Index, vectors: Floats) -> Rows:
    """Return the rows that an exact scan finds, (n_queries, 10)."""
    return index.state.search(vectors, K, exact=True)[1]


def exact_spec(n_rows: int) -> IndexSpec:
    """Return the spec of an exact scan."""
    return IndexSpec()


def list_spec(n_rows: int) -> IndexSpec:
    """Return a spec of inverted lists for a number of rows in an index or a shard."""
    lists = lists_for(n_rows)
    return IndexSpec(factory=f"IVF{lists},SQfp16", nprobe=max(1, round(lists * VISITED)))


def made(
    folder: Path, data: Data, n_docs: int, n_shards: int, spec_of: Callable[[int], IndexSpec]
) -> Index:
    """Build an index of all documents, or open that of an earlier run."""
    spec = spec_of(n_docs // n_shards)
    path = folder / f"{n_shards}-{spec.factory.replace(',', '-')}"
    if not path.exists():
        model = HashingEmbedder(data.dim)
        making = path.with_name(f"{path.name}.partial")
        create = Index.create if n_shards == 1 else partial(Index.create, n_shards=n_shards)
        index = create(making, model=model, spec=spec)
        for documents, vectors in data.blocks():
            index.add(documents, vectors=vectors)
        index.compact()
        making.rename(path)
    return Index.open(path)


def drawn_data(options: argparse.Namespace) -> tuple[Data, int]:
    """Draw documents and queries."""
    n_docs = options.docs or (QUICK_DOCS if options.quick else N_DOCS)
    dim = QUICK_DIM if options.quick else DIM
    clusters = Clusters.of(options.seed, n_docs, dim)
    n_queries = QUICK_QUERIES if options.quick else QUERIES

    def blocks() -> Iterator[tuple[list[Document], Floats]]:
        rng, start = np.random.default_rng(options.seed), 0
        for vectors in clusters.blocks(n_docs):
            texts = drawn_texts(rng, len(vectors), TEXT_WORDS)
            yield [Document(f"d{start + i}", text) for i, text in enumerate(texts)], vectors
            start += len(vectors)

    texts = drawn_texts(np.random.default_rng([options.seed, 1]), n_queries, 4)
    return Data(dim, blocks, texts, clusters.draw(n_queries, 0)), n_docs


def drawn_texts(rng: np.random.Generator, n_texts: int, n_words: int) -> list[str]:
    """Draw texts of words whose frequencies follow Zipf's law."""
    numbers = np.minimum(rng.zipf(1.2, (n_texts, n_words)), N_WORDS)
    return [" ".join(f"w{number}" for number in row) for row in numbers.tolist()]


def real_data(options: argparse.Namespace) -> tuple[Data, int]:
    """Read paragraphs and questions, whose vectors are made by hashing words."""
    n_docs = options.docs or (QUICK_DOCS if options.quick else REAL_DOCS)
    model = HashingEmbedder(DIM)
    texts = squad_questions(QUICK_QUERIES if options.quick else QUERIES)

    def blocks() -> Iterator[tuple[list[Document], Floats]]:
        rest = iter(paragraphs(n_docs))
        start = 0
        while block := list(islice(rest, REAL_BLOCK)):
            documents = [Document(f"d{start + i}", text) for i, text in enumerate(block)]
            yield documents, model.encode_document(block)
            start += len(block)

    return Data(DIM, blocks, texts, model.encode_query(texts)), n_docs


if __name__ == "__main__":
    main()
