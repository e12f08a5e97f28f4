"""Texts for benchmarks: data sets from SBERT_SEARCH_DATA, or docstrings of Python's library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle, islice, pairwise
from pathlib import Path

from sbert_search.records import Document
from sbert_search.text.docstrings import stdlib_documents
from sbert_search.text.documents import CorpusReader
from sbert_search.text.fields import FieldNames
from sbert_search.text.labelled.pairs import read_pairs
from sbert_search.text.labelled.records import TextPair
from sbert_search.text.labelled.retrieval import read_queries


def data_folder() -> Path | None:
    """Return the folder of the data sets; None if SBERT_SEARCH_DATA is not set."""
    folder = os.environ.get("SBERT_SEARCH_DATA")
    return Path(folder) if folder else None


def sentences(limit: int) -> tuple[str, list[str]]:
    """Return the name of a source and up to `limit` sentences of it.

    The source is STSb train, or without it the first lines of docstrings.
    """
    data = data_folder()
    if data is None:
        lines = (document.text.strip().partition("\n")[0] for document in stdlib_documents())
        return "docstring_lines", _distinct(lines, limit)
    pairs = read_pairs(data / "stsb" / "train.jsonl.gz")
    return "stsb", _distinct((text for pair in pairs for text in (pair.text1, pair.text2)), limit)


def nli_pairs(limit: int, *, only: str | None = None) -> tuple[str, list[TextPair]]:
    """Return the name of a source and up to `limit` labelled pairs of it.

    The source is SNLI, or without it consecutive sentences with made-up labels. With `only`, all
    pairs have that label.
    """
    data = data_folder()
    if data is None:
        _, texts = sentences(limit + 1)
        labels = cycle([only] if only else ["entailment", "neutral", "contradiction"])
        return "made", [TextPair(*two, label=next(labels)) for two in pairwise(texts)]
    pairs = read_pairs(data / "snli" / "train_subset_18k.jsonl.gz")
    return "snli", [p for p in pairs if p.label != "-" and only in (None, p.label)][:limit]


def documents(limit: int) -> tuple[str, list[Document]]:
    """Return the name of a source and up to `limit` documents of it.

    The source is SciFact's abstracts, or without it docstrings.
    """
    data = data_folder()
    if data is None:
        return "docstrings", list(islice(stdlib_documents(), limit))
    batches = CorpusReader([data / "scifact"]).batches()
    return "scifact", list(islice((d for batch in batches for d in batch.documents), limit))


def questions(limit: int) -> tuple[str, list[str]]:
    """Return the name of a source and up to `limit` queries of it.

    The source is SciFact, or without it the first lines of docstrings.
    """
    data = data_folder()
    if data is None:
        return sentences(limit)
    found = read_queries(data / "scifact")
    return "scifact", [query.text for query in found[:limit]]


def squad_questions(limit: int) -> list[str]:
    """Return up to `limit` questions of SQuAD, or first lines of docstrings."""
    data = data_folder()
    if data is None:
        return sentences(limit)[1]
    found = read_queries(data / "squad" / "dev_a.jsonl.gz", fields=FieldNames(text="question"))
    return [query.text for query in found[:limit]]


def many_documents(count: int) -> Iterator[Document]:
    """Yield short documents: the sentences of `documents`, repeated and numbered."""
    _, source = documents(2000)
    parts = [part for document in source for part in document.text.split(". ") if part.strip()]
    for number, text in enumerate(islice(cycle(parts), count)):
        yield Document(f"doc-{number}", f"{text} ({number})")


def paragraphs(count: int) -> Iterator[str]:
    """Yield up to `count` paragraphs of Wikipedia, of 150 characters or more.

    Without SBERT_SEARCH_DATA, yield the texts of `many_documents` instead.
    """
    data = data_folder()
    if data is None:
        return (document.text for document in many_documents(count))
    batches = CorpusReader([data / "wikipedia-en-2014" / "train-*.jsonl.xz"]).batches()
    lines = (line for b in batches for d in b.documents for line in d.text.split("\n"))
    return islice((line for line in lines if len(line) >= 150), count)


def _distinct(texts: Iterator[str], limit: int) -> list[str]:
    return list(islice(dict.fromkeys(text for text in texts if text.strip()), limit))
