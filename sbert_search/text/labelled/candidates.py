"""Read the input of a reranker: queries, candidate documents and their relevance grades."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sbert_search.errors import CorpusError
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader
from sbert_search.text.labelled.pairs import read_pairs
from sbert_search.text.labelled.records import TextPair
from sbert_search.text.labelled.retrieval import is_own_document, read_qrels, read_queries, read_run


@dataclass(frozen=True, slots=True)
class Candidates:
    """One query with its candidates, which are the documents to rerank."""

    query_id: str
    query: str
    texts: Mapping[str, str]  # of the candidates by id, in the order of the run or the file
    grades: Mapping[str, int]  # of every judged document by id; others have grade 0


def judged_candidates(
    folder: Path, run: Path, *, split: str, depth: int, with_relevant: bool = False
) -> list[Candidates]:
    """Read the documents that a run retrieved for the judged queries of a BEIR folder.

    The candidates of a query are the first ``depth`` of its run. ``with_relevant`` appends the
    relevant documents that are not among them, which training needs. If a query is itself a
    document of the folder (see `is_own_document`), this document is no candidate of the query.
    """
    qrels, hits = read_qrels(folder, split), read_run(run)
    queries = {query.query_id: query.text for query in read_queries(folder)}
    _check_known(qrels, queries, f"{folder}: the judgements of {split!r} name the query")
    relevant = {
        query: [doc_id for doc_id, grade in grades.items() if grade > 0 and with_relevant]
        for query, grades in qrels.items()
    }
    # One more than depth, since the query's own document may be among them.
    first = {query: list(islice(hits.get(query, ()), depth + 1)) for query in qrels}
    named = {doc_id for ids in (*relevant.values(), *first.values()) for doc_id in ids}
    documents = _documents(folder, named)
    found = []
    for query, grades in qrels.items():
        if query in first[query] and is_own_document(queries[query], documents[query], grades):
            first[query].remove(query)
        ids = dict.fromkeys([*first[query][:depth], *relevant[query]])
        texts = {doc_id: documents[doc_id].full_text for doc_id in ids}
        found.append(Candidates(query, queries[query], texts, grades))
    return found


def labelled_candidates(
    path: Path, *, text1: str | None = None, text2: str | None = None, label: str | None = None
) -> list[Candidates]:
    """Read a file with a query, a candidate and a grade (an integer from 0) in each row.

    Rows with the same query text form one query. A column that is not named is detected.
    """
    groups: dict[str, list[TextPair]] = {}
    for pair in read_pairs(
        path, text1=text1, text2=text2, label=label, need=["label"], class_names=False
    ):
        groups.setdefault(pair.text1, []).append(pair)
    return [_labelled(str(n), query, pairs) for n, (query, pairs) in enumerate(groups.items())]


def _labelled(query_id: str, query: str, pairs: Iterable[TextPair]) -> Candidates:
    texts, grades = {}, {}
    for number, pair in enumerate(pairs):
        if not (pair.label or "").isdecimal():
            raise CorpusError(f"{pair.source}: label is {pair.label!r}; it must be 0, 1, 2, ...")
        doc_id = f"{query_id}-{number}"
        texts[doc_id], grades[doc_id] = pair.text2, int(pair.label or 0)
    return Candidates(query_id, query, texts, grades)


def _documents(folder: Path, doc_ids: Collection[str]) -> dict[str, Document]:
    documents = {
        document.doc_id: document
        for batch in CorpusReader(folder).batches()
        for document in batch.documents
        if document.doc_id in doc_ids
    }
    _check_known(doc_ids, documents, f"{folder}: the run or the judgements name the document")
    return documents


def _check_known(names: Iterable[str], known: Collection[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise CorpusError(f"{what} {name!r}, which does not exist; use files of one data set.")
