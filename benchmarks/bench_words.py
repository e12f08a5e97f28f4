"""Costs of operators, fuzzy words and suggestions in queries, and of the list of words in a build.

    python benchmarks/bench_words.py [--quick] [--out F.json]

The documents are 20,000 docstrings or, if SBERT_SEARCH_DATA is set, the abstracts of SciFact
(--quick: 2,000 documents). The embedder hashes words, which takes less time than any model, so the
list has a larger share of the build than with any model. The peer of the build is one without the
list of words. Queries are made of titles of the documents. The peer of each kind of query is a
lexical search for the same words as plain text.

The words near a word are looked up in a list of 500,000 made-up words (--quick: 50,000).
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from common import Figure, Results, arguments, compare, repeats_of, seconds
from texts import documents

from sbert_search import Index, SearchEngine
from sbert_search.base.progress import set_progress
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.lexical import vocabulary as word_files
from sbert_search.index.lexical.vocabulary import Vocabulary, WordList
from sbert_search.records import Document

N_DOCS, QUICK_DOCS = 20_000, 2_000
N_WORDS, QUICK_WORDS = 500_000, 50_000
QUERIES, K = 100, 10
SYLLABLES = ["ba", "con", "er", "gra", "ing", "ly", "mi", "ph", "re", "st", "tion", "to", "u"]


def main() -> None:
    """Measure, print the figures and write the result file."""
    options = arguments(__doc__.partition("\n")[0]).parse_args()
    results, repeats = Results(options), repeats_of(options)
    _, docs = documents(QUICK_DOCS if options.quick else N_DOCS)
    set_progress("off")
    listed, plain = (partial(build_seconds, docs, listed=listed) for listed in (True, False))
    results.add("build with the list", compare(listed, plain, unit="s", repeats=repeats))
    with tempfile.TemporaryDirectory(prefix="bench-words-") as scratch:
        build(docs, Path(scratch) / "index")
        measure_queries(results, Path(scratch) / "index", docs, repeats)
    rng = random.Random(options.seed)
    measure_near(results, QUICK_WORDS if options.quick else N_WORDS, rng)


def build(docs: Sequence[Document], path: Path) -> None:
    """Build an index of documents in memory."""
    Index.build(docs, out=path, model=HashingEmbedder())


def build_seconds(docs: Sequence[Document], *, listed: bool) -> float:
    """Return the seconds of a build with or without the list of words."""
    threshold = word_files.LISTED_FROM
    word_files.LISTED_FROM = threshold if listed else 10**9
    try:
        with tempfile.TemporaryDirectory(prefix="bench-words-") as scratch:
            return seconds(lambda: build(docs, Path(scratch) / "index"))
    finally:
        word_files.LISTED_FROM = threshold


def measure_queries(results: Results, path: Path, docs: Sequence[Document], repeats: int) -> None:
    """Compare queries with operators or fuzzy words to plain queries, and time suggestions."""
    engine = SearchEngine(Index.open(path), HashingEmbedder())
    titles = [words for doc in docs if len(words := doc.title.split()) > 2][:QUERIES]
    titles = titles or [doc.text.split()[:5] for doc in docs[:QUERIES]]
    kinds: dict[str, Callable[[list[str]], str]] = {
        "+word": lambda words: f"{' '.join(words[1:])} +{words[0]}",
        "-word": lambda words: f"{' '.join(words[1:])} -{words[0]}",
        "phrase of two words": lambda words: f'{" ".join(words[2:])} "{" ".join(words[:2])}"',
    }
    for name, write in kinds.items():
        asked = [write(words) for words in titles]
        ours = partial(median_ms, engine, asked, syntax="operators")
        results.add(
            name, compare(ours, partial(median_ms, engine, asked), unit="ms", repeats=repeats)
        )
    asked = [" ".join(words) for words in titles]
    for edits in (1, 2):
        ours = partial(median_ms, engine, asked, fuzzy=edits)
        peer = partial(median_ms, engine, asked)
        results.add(f"fuzzy, {edits} edits", compare(ours, peer, unit="ms", repeats=repeats))
    times = [seconds(partial(engine.suggest, query)) * 1000 for query in asked]
    results.add("suggest", Figure(statistics.median(times), "ms"))


def median_ms(
    engine: SearchEngine, queries: Sequence[str], *, syntax: str = "plain", fuzzy: int = 0
) -> float:
    """Return the median time of a lexical search in ms."""
    search = partial(engine.search, k=K, mode="lexical", fuzzy=fuzzy)
    if syntax == "plain":
        search = partial(search, syntax="plain")
    return statistics.median(seconds(partial(search, query)) for query in queries) * 1000


def measure_near(results: Results, count: int, rng: random.Random) -> None:
    """Look up words near given ones in a long list."""
    made = {"".join(rng.choices(SYLLABLES, k=rng.randint(2, 6))) for _ in range(3 * count)}
    words = sorted(made)[:: max(1, len(made) // count)][:count]
    vocabulary = Vocabulary([WordList.of(dict.fromkeys(words, 1))])
    asked = rng.sample(words, QUERIES)
    times = [seconds(partial(vocabulary.near, word, 2)) * 1000 for word in asked]
    results.add(f"words near a word, of {len(words):,}", Figure(statistics.median(times), "ms"))
    results.add("slowest of these", Figure(max(times), "ms"))


if __name__ == "__main__":
    main()
