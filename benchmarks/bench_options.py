"""Cost of each option of a search: the same search with the option and without it.

    python benchmarks/bench_options.py [--quick] [--out F.json]

The index has 100,000 paragraphs of Wikipedia (--quick: 5,000) with a title of four words and with
columns of 20 strings, of numbers and of dates; the queries are questions of SQuAD. Without
SBERT_SEARCH_DATA, the documents are repeated sentences, and the queries first lines, of docstrings
of Python's library. A second index has the same paragraphs in
documents of ten, which are split into passages. Searches are hybrid with k = 10, and their vectors
are made by hashing words: the time of a model, which no option but the highlights changes, is left
out, so the ratios are upper bounds. For the highlights, all-MiniLM-L6-v2 runs in both searches.

Each figure compares median latencies in ms: "ours" is the search with the option and "peer" the
same search without it, or the search that the name of the figure says. Each query is asked with the
option and then without it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Unpack

from bench_search import ModelTimed
from common import Results, arguments, paired, seconds
from texts import paragraphs, squad_questions

from sbert_search import Boost, Index, SearchEngine
from sbert_search.base.progress import set_progress
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.building.build import BuildKeywords
from sbert_search.index.settings import LexicalSettings
from sbert_search.records import Document, MetadataValue, Query
from sbert_search.search.options import SearchKeywords

N_DOCS, QUICK_DOCS = 100_000, 5_000
QUERIES, QUICK_QUERIES = 100, 30
ROUNDS, QUICK_ROUNDS = 9, 3
KINDS, TITLE_WORDS, JOINED, PASSAGE_TOKENS = 20, 4, 10, 128
NOW = datetime(2026, 1, 1, tzinfo=UTC)

Ask = Callable[[str], object]
"""Asks one query."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A search with an option and the same search without it."""

    name: str
    ours: Ask
    peer: Ask


def main() -> None:
    """Measure, print the figures and write the result file."""
    options = arguments(__doc__.partition("\n")[0]).parse_args()
    results = Results(options)
    asked = squad_questions(QUICK_QUERIES if options.quick else QUERIES)
    repeats = options.repeats or (QUICK_ROUNDS if options.quick else ROUNDS)
    set_progress("off")
    with tempfile.TemporaryDirectory(prefix="bench-options-") as scratch:
        count = QUICK_DOCS if options.quick else N_DOCS
        for trial in trials(Path(scratch), list(documents(count))):
            median_ms(trial, asked[:3])  # a warm-up
            rounds = [median_ms(trial, asked) for _ in range(repeats)]
            ours, peer = (list(values) for values in zip(*rounds, strict=True))
            results.add(trial.name, paired(ours, peer, unit="ms"))


def median_ms(trial: Trial, queries: Sequence[str]) -> tuple[float, float]:
    """Ask each query with the option and then without it; return both median times in ms."""
    times = [
        [seconds(partial(ask, query)) for ask in (trial.ours, trial.peer)] for query in queries
    ]
    ours, peer = (1000 * median(of_one) for of_one in zip(*times, strict=True))
    return ours, peer


def documents(count: int) -> Iterator[Document]:
    """Yield paragraphs with a title and metadata."""
    for number, text in enumerate(paragraphs(count)):
        metadata: dict[str, MetadataValue] = {
            "kind": f"kind {number * 7 % KINDS}",
            "views": number * 31 % 1_000,
            "day": date(2020, 1, 1) + timedelta(days=number % 2_000),
        }
        yield Document(str(number), text, " ".join(text.split()[:TITLE_WORDS]), metadata=metadata)


def trials(folder: Path, docs: Sequence[Document]) -> Iterator[Trial]:
    """Yield the trials of all options."""
    engine = SearchEngine(build(docs, folder / "short"), HashingEmbedder())
    plain = asking(engine)
    yield Trial("k=100", asking(engine, k=100), plain)
    yield Trial("offset=90", asking(engine, offset=90), asking(engine, k=100))
    yield Trial("min_score=0.2", asking(engine, min_score=0.2), plain)
    yield Trial("diversity=0.3", asking(engine, diversity=0.3), plain)
    yield Trial("group_by, 20 values", asking(engine, group_by="kind"), plain)
    yield Trial("boost by a number", asking(engine, boost=Boost("views", 0.1)), plain)
    recent = Boost("day", 0.3, "recency", half_life_days=365, now=NOW)
    yield Trial("boost by a date", asking(engine, boost=recent), plain)
    yield Trial("where, the same filter again", asking(engine, where="views < 500"), plain)
    yield Trial("where, a new filter for each query", new_filters(engine), plain)
    yield from word_trials(engine, plain)
    yield Trial("facets of two columns", with_facets(engine), plain)
    yield Trial("texts of the hits, against a run", plain, ids_only(engine))
    timed = SearchEngine(engine.index, ModelTimed())
    yield Trial("highlight, with a model", partial(timed.search, highlight=True), timed.search)
    words = LexicalSettings(title_weight=0)
    untitled = SearchEngine(build(docs, folder / "untitled", lexical=words), HashingEmbedder())
    yield Trial("words of titles count twice", plain, asking(untitled))
    chunked = build(joined(docs), folder / "long", chunk_tokens=PASSAGE_TOKENS)
    long = SearchEngine(chunked, HashingEmbedder())
    yield Trial("full_text, passages", asking(long, full_text=True), asking(long))
    yield Trial("group=False, passages", asking(long, group=False), asking(long))


def word_trials(engine: SearchEngine, plain: Ask) -> Iterator[Trial]:
    """Yield the trials of fuzzy words, and of operators against the same words as plain text."""
    for edits in (1, 2):
        yield Trial(f"fuzzy={edits}", asking(engine, fuzzy=edits), plain)
    yield Trial("+word", lambda query: engine.search(required(query)), plain)
    yield Trial("-word", lambda query: engine.search(f"{query} -again"), plain)
    yield Trial("a phrase", lambda query: engine.search(quoted(query)), plain)


def required(query: str) -> str:
    """Require the last word of a query."""
    *others, last = query.strip("?. ").split()
    return " ".join([*others, f"+{last}"])


def quoted(query: str) -> str:
    """Put the last two words of a query in quotes."""
    *others, one, two = ["", *query.strip("?. ").split()]
    return " ".join([*others, f'"{one} {two}"'.replace('" ', '"')])


def asking(engine: SearchEngine, k: int = 10, **keywords: Unpack[SearchKeywords]) -> Ask:
    """Return a function that searches with some options."""
    return lambda query: engine.search(query, k, **keywords)


def new_filters(engine: SearchEngine) -> Ask:
    """Return a function that searches with another filter at each call."""
    numbers = iter(range(1, 1 << 30))
    return lambda query: engine.search(query, where=f"views < 500 AND views <> {next(numbers)}000")


def with_facets(engine: SearchEngine) -> Ask:
    """Return a function that searches and counts the values of two columns."""

    def ask(query: str) -> None:
        engine.search(query)
        engine.facets(query, ["kind", "views"])

    return ask


def ids_only(engine: SearchEngine) -> Ask:
    """Return a function that finds the ids and scores of a query's hits."""
    return lambda query: engine.run([Query("q", query)], 10)


def joined(docs: Sequence[Document]) -> Iterator[Document]:
    """Join paragraphs to documents of `JOINED` paragraphs."""
    rest = iter(docs)
    while some := list(islice(rest, JOINED)):
        yield Document(some[0].doc_id, "\n\n".join(document.text for document in some))


def build(docs: Iterable[Document], out: Path, **keywords: Unpack[BuildKeywords]) -> Index:
    """Build an index of documents in memory."""
    return Index.build(docs, out=out, model=HashingEmbedder(), **keywords)


if __name__ == "__main__":
    main()
