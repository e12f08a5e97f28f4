"""Searching and adding through other frameworks, against the same work without them.

    python benchmarks/bench_integrations.py [--quick] [--model M] [--out F.json]

Needs the extra integrations. LangChain's `batch` of all queries is compared with
`SearchEngine.search_many`. Frameworks that search for one query at a time are compared with
`SearchEngine.search`, called once for each query. Both sides embed the texts of the queries with
the same model. Ratios are times: 1.05 is an overhead of 5 %. A figure NAME_framework_floor is the
time of the same calls without a search (`framework_floors.py`), compared with the same peer: the
part of the overhead that any adapter of the framework has. For adding, the peer is `Index.build` of
the same documents, and ratios are speeds; the documents are embedded by hashing, since the time of
a model would hide that of the adapter. All run alternately in one process.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import framework_floors
from common import Figure, Results, arguments, compare, paired, rate, repeats_of, seconds
from texts import documents, many_documents, questions

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.index.building.model_check import as_embedder
from sbert_search.index.index import Index
from sbert_search.records import Document
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchOptions

QUERIES, QUICK_QUERIES = 1_000, 100
SINGLE = 100  # queries that are searched for one by one
SEARCHED = 300  # documents of the index that is searched
DOCUMENTS, QUICK_DOCUMENTS = 10_000, 500  # documents to add
K = 10
DENSE = SearchOptions(k=K, mode="dense", syntax="plain", full_text=True)

Call = Callable[[], object]


def searches(
    folder: Path,
    embedder: TextEmbedder,
    model_name: str | None,
    queries: Sequence[str],
    repeats: int,
) -> dict[str, Figure]:
    """Compare searches through each framework with those of an engine on the same index."""
    from llama_index.core import VectorStoreIndex

    from sbert_search.integrations.haystack import (
        SbertSearchDocumentStore,
        SbertSearchEmbeddingRetriever,
        SbertSearchTextEmbedder,
    )
    from sbert_search.integrations.langchain import (
        SbertSearchEmbeddings,
        SbertSearchRetriever,
        SbertSearchVectorStore,
    )
    from sbert_search.integrations.llamaindex import SbertSearchEmbedding
    from sbert_search.integrations.llamaindex import SbertSearchVectorStore as LlamaIndexStore

    engine = SearchEngine(folder, embedder)
    store = SbertSearchVectorStore(SbertSearchEmbeddings(embedder), folder)
    retriever = SbertSearchRetriever(
        store=store, k=K, mode="dense", search_kwargs={"full_text": True}
    )
    text_embedder = SbertSearchTextEmbedder(model_name)
    haystack = SbertSearchEmbeddingRetriever(SbertSearchDocumentStore(str(folder)), top_k=K)
    model = SbertSearchEmbedding(embedder)
    llamaindex = VectorStoreIndex.from_vector_store(
        LlamaIndexStore(str(folder), model), model
    ).as_retriever(similarity_top_k=K)
    single = queries[:SINGLE]
    hits, vector = engine.search(single[0], options=DENSE), model.get_query_embedding(single[0])
    langchain_floor = framework_floors.langchain(hits)
    haystack_floor = framework_floors.haystack(hits, vector)
    llamaindex_floor = framework_floors.llamaindex(hits, vector)

    def engine_alone(query: str) -> object:
        return engine.search(query, options=DENSE)

    several = list(queries)
    figures: dict[str, Figure] = {}
    for name, ours, peer, floor in (
        (
            "langchain_search",
            lambda q: store.similarity_search(q, K),
            engine_alone,
            langchain_floor,
        ),
        (
            "haystack_search",
            lambda q: haystack.run(text_embedder.run(q)["embedding"]),
            engine_alone,
            haystack_floor,
        ),
        ("llamaindex_search", llamaindex.retrieve, engine_alone, llamaindex_floor),
    ):
        works = [[partial(work, query) for query in single] for work in (ours, peer, floor)]
        figures |= compared(name, works, repeats)
    batches: list[list[Call]] = [
        [lambda: retriever.batch(several)],
        [lambda: engine.search_many(several, options=DENSE)],
        [lambda: list(map(langchain_floor, several))],
    ]
    return figures | compared("langchain_batch", batches, repeats)


def compared(name: str, works: Sequence[Sequence[Call]], repeats: int) -> dict[str, Figure]:
    """Compare the times of ours with those of the peer, and those of the floor with the peer too.

    Args:
        name: Name of the first figure.
        works: The calls of ours, of the peer and of the floor. The first call of each is timed,
            then the second of each, and so on: the speed of a machine changes within seconds.
        repeats: Number of rounds, after one that warms up.
    """
    rounds = []
    for _ in range(repeats + 1):
        times = [tuple(map(seconds, calls)) for calls in zip(*works, strict=True)]
        rounds.append([sum(column) for column in zip(*times, strict=True)])
        gc.collect()
    ours, peer, floor = (list(column) for column in zip(*rounds[1:], strict=True))
    return {
        name: paired(ours, peer, unit="s"),
        f"{name}_framework_floor": paired(floor, peer, unit="s"),
    }


def additions(
    scratch: Path, embedder: TextEmbedder, corpus: Sequence[Document], repeats: int
) -> dict[str, Figure]:
    """Compare the speed of adding all documents in one call with that of a build."""
    from haystack import Document as HaystackDocument
    from langchain_core.documents import Document as LangChainDocument

    from sbert_search.integrations.collection import Collection
    from sbert_search.integrations.haystack import SbertSearchDocumentStore
    from sbert_search.integrations.langchain import SbertSearchEmbeddings, SbertSearchVectorStore

    folders = (scratch / f"i{number}" for number in range(1_000_000))
    rows = [{"_id": d.doc_id, "text": d.full_text, "n": n} for n, d in enumerate(corpus)]
    chains = [
        LangChainDocument(id=d.doc_id, page_content=d.full_text, metadata={"n": n})
        for n, d in enumerate(corpus)
    ]
    stacks = [
        HaystackDocument(id=d.doc_id, content=d.full_text, meta={"n": n})
        for n, d in enumerate(corpus)
    ]

    def build() -> object:
        return Index.build(rows, out=next(folders), model=embedder)

    def langchain() -> object:
        store = SbertSearchVectorStore(SbertSearchEmbeddings(embedder), next(folders))
        return store.add_documents(chains)

    def haystack() -> object:
        store = SbertSearchDocumentStore()
        store.collection = Collection(next(folders), embedder)  # with the model that is open
        return store.write_documents(stacks)

    figures = {}
    for name, add in (("langchain_add", langchain), ("haystack_write", haystack)):
        figures[name] = compare(
            partial(rate, len(corpus), add),
            partial(rate, len(corpus), build),
            unit="documents/s",
            repeats=repeats,
        )
        gc.collect()
    return figures


def main() -> None:
    """Measure, print and write the figures."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", help="default: the installed model; 'hashing' for no model")
    options = parser.parse_args()
    results, repeats = Results(options), repeats_of(options)
    _, queries = questions(QUICK_QUERIES if options.quick else QUERIES)
    _, searched = documents(QUICK_DOCUMENTS if options.quick else SEARCHED)
    corpus = list(many_documents(QUICK_DOCUMENTS if options.quick else DOCUMENTS))
    embedder = as_embedder(options.model)
    with tempfile.TemporaryDirectory(prefix="bench-integrations-") as name:
        scratch = Path(name)
        rows = [{"_id": document.doc_id, "text": document.full_text} for document in searched]
        Index.build(rows, out=scratch / "searched", model=embedder)
        for figures in (
            searches(scratch / "searched", embedder, options.model, queries, repeats),
            additions(scratch, HashingEmbedder(), corpus, repeats),
        ):
            for figure, value in figures.items():
                results.add(figure, value)


if __name__ == "__main__":
    main()
