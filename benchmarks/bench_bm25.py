"""Speed of BM25 next to tantivy and bm25s, and build time, memory and disk beside each.

    python benchmarks/bench_bm25.py [--quick] [--docs 150000] [--docs 1000000] [--out F.json]

Documents are generated: 60 words each, of a vocabulary whose frequencies follow Zipf's law. The
four words of a query are drawn alike ("common words") or all with the same probability from the
5,000 most frequent ones ("rare words"). Every engine stems English, works in one thread and returns
the ids and scores of the ten best documents. Time is processor time.

Each query is first answered without pruning, and both answers must be equal in every bit.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from common import Figure, Results, arguments, paired, repeats_of, run_child

N_DOCS, QUICK_DOCS = (150_000, 1_000_000), (10_000,)
WORDS, LENGTH, QUERIES, K = 50_000, 60, 300, 10
ENGINES = ("ours", "tantivy", "bm25s")

Answer = Callable[[str], object]


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--docs", type=int, action="append", help="number of documents")
    parser.add_argument("--child", nargs=4, help="used by the script itself")
    options = parser.parse_args()
    if options.child:
        engine, what, count, folder = options.child
        print(json.dumps(CHILDREN[what](engine, int(count), Path(folder))))
        return
    results = Results(options)
    for count in options.docs or (QUICK_DOCS if options.quick else N_DOCS):
        with tempfile.TemporaryDirectory(prefix="bench-bm25-") as scratch:
            measure(results, count, Path(scratch))


def measure(results: Results, count: int, scratch: Path) -> None:
    """Build the indexes of some documents, then search them alternately."""

    def child(engine: str, what: str) -> Any:
        return run_child(__file__, "--child", engine, what, str(count), str(scratch / engine))

    texts = child("none", "build")
    built: dict[str, tuple[float, float, float]] = {}
    for engine in ENGINES:
        run = child(engine, "build")
        files = [file for file in (scratch / engine).rglob("*") if file.is_file()]
        words = [file for file in files if engine != "ours" or file.parent.name == "lex"]
        taken = run.result["seconds"] - texts.result["seconds"]
        disk = sum(file.stat().st_size for file in words) / 1e6
        built[engine] = taken, run.anonymous_mib - texts.anonymous_mib, disk
    for peer in ENGINES[1:]:
        for at, (name, unit) in enumerate((("build", "s"), ("memory", "MiB"), ("disk", "MB"))):
            mine, theirs = built["ours"][at], built[peer][at]
            figure = Figure(mine, unit, theirs, mine / theirs)
            results.add(f"{count:,} documents: {name}, {peer}", figure)
    rounds = [
        {engine: child(engine, "search").result for engine in ENGINES}
        for _ in range(repeats_of(results.options))
    ]
    for peer in ENGINES[1:]:
        for name in rounds[0]["ours"]:
            times = [[each[engine][name] for each in rounds] for engine in ("ours", peer)]
            results.add(f"{count:,} documents: {name}, {peer}", paired(*times, unit="ms"))


def texts_of(count: int) -> Iterator[str]:
    """Generate the documents."""
    for first in range(0, count, 10_000):
        yield from _drawn(first, (min(10_000, count - first), LENGTH), WORDS, 1.0)


def queries() -> dict[str, list[str]]:
    """Generate the queries of each kind."""
    kinds = {"common words": (WORDS, 1.0), "rare words": (5_000, 0.0)}
    return {name: _drawn(-1, (QUERIES, 4), *kind) for name, kind in kinds.items()}


def _drawn(number: int, size: tuple[int, int], words: int, power: float) -> list[str]:
    """Draw words of which the n-th has a share of 1 / n ** power."""
    share = 1 / np.arange(1, words + 1) ** power
    drawn = np.random.default_rng(number % 2**32).choice(words, size, p=share / share.sum())
    return [" ".join(f"w{word:x}q" for word in text) for text in drawn.tolist()]


def build(engine: str, count: int, folder: Path) -> dict[str, float]:
    """Build an index; engine "none" generates the texts only, whose time is subtracted."""
    start = time.process_time()
    texts = list(texts_of(count))
    if engine == "ours":
        from sbert_search import Index

        rows = ({"_id": str(number), "text": text} for number, text in enumerate(texts))
        Index.build(rows, out=folder, vectors=np.ones((count, 1), np.float32))
    elif engine == "tantivy":
        import tantivy

        folder.mkdir()
        writer = _tantivy(folder).writer(num_threads=1)
        for number, text in enumerate(texts):
            writer.add_document(tantivy.Document(id=str(number), text=text))
        writer.commit()
        writer.wait_merging_threads()
    elif engine == "bm25s":
        import bm25s

        retriever = bm25s.BM25()
        retriever.index(_tokens(texts, return_ids=True), show_progress=False)
        retriever.save(folder)
    return {"seconds": time.process_time() - start}


def search(engine: str, count: int, folder: Path) -> dict[str, float]:
    """Time the queries one by one, after one round that is not counted."""
    answer = ANSWERS[engine](folder)
    figures = {}
    for name, asked in queries().items():
        for query in asked:
            answer(query)
        taken = []
        for query in asked:
            start = time.process_time_ns()
            answer(query)
            taken.append((time.process_time_ns() - start) / 1e6)
        for share in (50, 95):
            figures[f"{name}, p{share}"] = float(np.percentile(taken, share))
        figures[f"{name}, mean"] = statistics.mean(taken)
    return figures


CHILDREN = {"build": build, "search": search}


def _ours(folder: Path) -> Answer:
    from sbert_search import Index
    from sbert_search.base.memory import let_freed_memory_stay
    from sbert_search.index.lexical import bm25

    let_freed_memory_stay()  # as `SearchEngine` does
    snapshot = Index.open(folder).store.snapshot

    def found(query: str) -> tuple[list[str], list[float]]:
        [matches] = snapshot.lexical.search([query], K)
        return snapshot.doc_ids(matches.docs), matches.scores.tolist()

    for query in chain.from_iterable(queries().values()):
        with mock.patch.object(bm25, "PRUNED_FROM", sys.maxsize):
            exhaustive = found(query)
        assert found(query) == exhaustive, query
    return found


def _tantivy(folder: Path) -> Any:
    import tantivy

    schema = tantivy.SchemaBuilder()
    schema.add_text_field("id", stored=True, tokenizer_name="raw")
    schema.add_text_field("text", tokenizer_name="en_stem", index_option="freq")
    return tantivy.Index(schema.build(), path=str(folder))


def _tantivy_answer(folder: Path) -> Answer:
    index = _tantivy(folder)
    searcher = index.searcher()

    def found(query: str) -> list[tuple[float, str]]:
        hits = searcher.search(index.parse_query(query, ["text"]), K).hits
        return [(score, searcher.doc(address)["id"][0]) for score, address in hits]

    return found


def _tokens(texts: list[str], *, return_ids: bool) -> Any:
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    return bm25s.tokenize(texts, stemmer=stemmer, return_ids=return_ids, show_progress=False)


def _bm25s_answer(folder: Path) -> Answer:
    import bm25s

    retriever = bm25s.BM25.load(folder, mmap=True)

    def found(query: str) -> object:
        tokens = _tokens([query], return_ids=False)
        return retriever.retrieve(tokens, k=K, show_progress=False, n_threads=0)

    return found


ANSWERS = {"ours": _ours, "tantivy": _tantivy_answer, "bm25s": _bm25s_answer}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
