"""Search for passages, against scoring every passage."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import QueryError
from sbert_search.index.index import Index
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.storage.rows import StoredPassage
from sbert_search.records import Hit, Query
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import Fusion, SearchMode
from tests.cli.process import sbert_search

WORDS = ("mill", "river", "wheel", "stone", "water", "flour", "bread", "salt", "sea", "wind")
MODEL = HashingEmbedder(32)
QUERIES = ["mill wheel", "salt sea wind", "bread", "river river stone"]
Scored = dict[int, float]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """60 documents of 1 to 40 words, some with a title, in passages of up to 5; some are dead."""
    rng = np.random.default_rng(0)

    def text(most: int) -> str:
        return " ".join(rng.choice(WORDS, rng.integers(1, most)))

    rows = [
        {"_id": str(n), "title": text(3) if n % 3 else "", "text": text(40), "year": n % 4}
        for n in range(60)
    ]
    index = Index.build(
        rows,
        out=tmp_path_factory.mktemp("passages") / "i",
        model=MODEL,
        on_truncate="chunk",
        chunk_tokens=5,
        chunk_overlap=1,
        lexical=LexicalSettings(language="none"),
    )
    index.delete([str(n) for n in range(0, 60, 7)])
    index.upsert([{**rows[1], "text": "mill wheel " * 9}], model=MODEL)
    return index


def passages(index: Index, year: int | None = None) -> list[StoredPassage]:
    found = index.state.fetch(index.state.live_rows())
    return [p for p in found if year is None or p.document.metadata["year"] == year]


def dense_scores(index: Index, query: str, some: Sequence[StoredPassage]) -> Scored:
    vectors = MODEL.encode([passage.text for passage in some])
    scores = (vectors @ MODEL.encode([query])[0]).tolist()
    return {passage.row: score for passage, score in zip(some, scores, strict=True)}


def word_scores(index: Index, query: str, some: Sequence[StoredPassage]) -> Scored:
    """BM25 of passages with the statistics of documents, by the formula; a title counts twice."""

    def terms(title: str, text: str) -> Counter[str]:
        return Counter(re.findall(r"\w+", f"{title} {title} {text}"))

    documents = [terms(doc.title, doc.text) for doc in index]
    average = sum(sum(counts.values()) for counts in documents) / len(documents)
    scores = {}
    for passage in some:
        title, offset = passage.document.title, len(passage.document.title) + 1
        start, end = passage.char_start, passage.char_end
        offset = offset if title else 0
        body = passage.document.text[max(start - offset, 0) : max(end - offset, 0)]
        counts = terms(title[start:end], body)
        total, score = sum(counts.values()), 0.0
        for term in query.split():
            df = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            norm = 1.2 * (0.25 + 0.75 * total / average)
            score += idf * counts[term] / (counts[term] + norm)
        if score > 0:
            scores[passage.row] = score
    return scores


def hybrid_scores(index: Index, query: str, some: Sequence[StoredPassage]) -> Scored:
    """The mean of the cosine and of the share of the most that BM25 can give."""
    documents = [set(re.findall(r"\w+", f"{doc.title} {doc.text}")) for doc in index]
    most = 0.0
    for term in query.split():
        df = sum(term in words for words in documents)
        most += math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
    words = word_scores(index, query, some)
    cosines = dense_scores(index, query, some)
    return {row: (cosine + words.get(row, 0.0) / most) / 2 for row, cosine in cosines.items()}


BRUTE: dict[SearchMode, Callable[[Index, str, Sequence[StoredPassage]], Scored]] = {
    "dense": dense_scores,
    "lexical": word_scores,
    "hybrid": hybrid_scores,
}


def assert_best(hits: Sequence[Hit], scores: Scored, k: int) -> None:
    assert len(hits) == min(k, len(scores))
    assert len({hit.row for hit in hits}) == len(hits)
    best = sorted(scores.values(), reverse=True)[:k]
    np.testing.assert_allclose([hit.score for hit in hits], best, atol=1e-5)
    np.testing.assert_allclose([scores[hit.row] for hit in hits], best, atol=1e-5)


@pytest.mark.parametrize("mode", BRUTE)
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("year", [None, 2])
def test_the_k_best_passages_are_those_of_all(
    index: Index, mode: SearchMode, query: str, year: int | None
) -> None:
    where = None if year is None else f"year = {year}"
    some = passages(index, year)
    fusion = Fusion(dense_weight=0.5, depth=index.state.n_rows)  # both stages rank all passages
    hits = SearchEngine(index, MODEL).search(
        query, 25, mode=mode, group=False, where=where, fusion=fusion
    )
    assert_best(hits, BRUTE[mode](index, query, some), 25)
    by_row = {passage.row: passage for passage in some}
    for rank, hit in enumerate(hits, 1):
        found = by_row[hit.row]
        assert (hit.rank, hit.doc_id, hit.chunk) == (rank, found.document.doc_id, found.chunk)
        assert (hit.passage, hit.span) == (found.text, (found.char_start, found.char_end))
    assert max(Counter(hit.doc_id for hit in hits).values()) > 1


@pytest.mark.parametrize("mode", BRUTE)
def test_pages_and_a_lowest_score_count_passages(index: Index, mode: SearchMode) -> None:
    engine = SearchEngine(index, MODEL)
    whole = engine.search("mill wheel", 12, mode=mode, group=False)
    page = engine.search("mill wheel", 5, mode=mode, group=False, offset=7)
    assert [(hit.row, hit.rank) for hit in page] == [(hit.row, hit.rank) for hit in whole[7:]]
    limit = whole[3].score
    some = engine.search("mill wheel", 12, mode=mode, group=False, min_score=limit)
    assert [hit.row for hit in some] == [hit.row for hit in whole if hit.score >= limit]


@pytest.mark.parametrize("mode", BRUTE)
def test_a_filter_that_no_document_passes_gives_no_passage(index: Index, mode: SearchMode) -> None:
    engine = SearchEngine(index, MODEL)
    assert engine.search("mill wheel", mode=mode, group=False, where="year = 9") == []


class Shortest:
    """A reranker that prefers short passages, and keeps what it read."""

    read: list[str]

    def predict(self, pairs: list[tuple[str, str]]) -> list[float]:
        self.read = [text for _, text in pairs]
        return [-float(len(text)) for _, text in pairs]


@pytest.mark.parametrize("mode", BRUTE)
def test_a_reranker_reads_each_passage_that_was_found(index: Index, mode: SearchMode) -> None:
    found = SearchEngine(index, MODEL).search("mill wheel", 20, mode=mode, group=False)
    reranker = Shortest()
    engine = SearchEngine(index, MODEL, reranker)
    hits = engine.search("mill wheel", 5, mode=mode, group=False, rerank_depth=20)
    assert sorted(reranker.read) == sorted(hit.passage for hit in found)
    assert [-hit.score for hit in hits] == sorted(len(hit.passage) for hit in found)[:5]


def test_documents_of_one_passage_are_ranked_as_documents(tmp_path: Path) -> None:
    rows = [{"_id": str(n), "text": text} for n, text in enumerate(QUERIES)]
    index = Index.build(rows, out=tmp_path / "i", model=MODEL)
    engine = SearchEngine(index, MODEL)
    for mode in BRUTE:
        for query in QUERIES:
            assert engine.search(query, 3, mode=mode, group=False) == engine.search(
                query, 3, mode=mode
            )


def test_operators_hold_for_passages_of_the_document(index: Index) -> None:
    engine = SearchEngine(index, MODEL)
    hits = engine.search("wheel +salt", 200, mode="lexical", group=False)
    documents = {doc.doc_id: f"{doc.title} {doc.text}" for doc in index}
    assert hits
    assert all("salt" in documents[hit.doc_id] for hit in hits)


def test_highlights_and_diversity_work_on_passages(index: Index) -> None:
    engine = SearchEngine(index, MODEL)
    hits = engine.search("mill", 8, mode="dense", group=False, highlight=True, diversity=0.5)
    assert all(hit.best_sentence in " ".join(hit.passage.split()) for hit in hits)
    assert len({hit.row for hit in hits}) == 8


def test_a_run_and_groups_of_documents_are_refused(index: Index) -> None:
    engine = SearchEngine(index, MODEL)
    with pytest.raises(QueryError, match="group is False, but a run has one score for each doc"):
        engine.run([Query("q", "mill")], group=False)
    with pytest.raises(QueryError, match="group_by is 'year', which groups documents"):
        engine.search("mill", group=False, group_by="year")


def test_the_command_line_prints_passages(index: Index) -> None:
    asked = ("search", index.path, "mill wheel", "--model", "hashing:32", "--passages", "-k", 6)
    records = sbert_search(*asked, "--json").records
    hits = SearchEngine(index, MODEL).search("mill wheel", 6, group=False)
    assert [record["passage"] for record in records] == [hit.passage for hit in hits]
    assert [record["chunk"] for record in records] == [hit.chunk for hit in hits]
    assert " chunk " in sbert_search(*asked).out
    queries = index.path.parent / "q.jsonl"
    queries.write_text('{"_id": "1", "text": "mill"}\n')
    run = sbert_search(
        *("search", index.path, "--queries", queries, "--run-out", queries.with_suffix(".trec")),
        "--passages",
    )
    assert run.code == 2
    assert "--run-out has one score for each document; leave out --passages." in run.err
