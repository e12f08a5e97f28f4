"""Read and write TREC run files, which hold search results.

A line is one hit: ``query_id Q0 doc_id rank score tag``, with ranks from 1. Only ASCII white space
separates cells, as in trec_eval; other Unicode spaces and line separators are part of an id.
trec_eval ignores the rank: it reads scores in 32 bits and breaks ties by document id. This package
uses the order of the ranks instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sbert_search.corpus.formats.rows import BadRow, Reject
from sbert_search.corpus.formats.text import read_text_lines
from sbert_search.corpus.sources import open_bytes
from sbert_search.errors import CorpusError
from sbert_search.records import Run
from sbert_search.runtime.disk.files import replacing

_CELL = re.compile(r"[^ \t\n\v\f\r]+")


def write_run(
    run: Run | Iterable[tuple[str, Mapping[str, float]]],
    path: Path,
    *,
    tag: str = "sbert-search",
) -> None:
    """Write a run atomically; the hits of a query are sorted by descending score.

    Hits with equal scores keep their order. A run that is an iterable is written query by query,
    so it is never in memory as a whole.

    Raises:
        CorpusError: The format cannot hold an id (it is empty, has white space, cannot be encoded
            as UTF-8, or starts a line with a byte order mark), a score is not finite, or the file
            cannot be written.
    """
    try:
        with replacing(path) as file:
            for query_id, hits in run.items() if isinstance(run, Mapping) else run:
                file.write("".join(_lines(query_id, hits, tag)).encode())
    except OSError as error:
        raise CorpusError(f"{path}: cannot be written: {error.strerror}.") from error


def _lines(query_id: str, hits: Mapping[str, float], tag: str) -> Iterator[str]:
    _check_id(query_id, "query")
    if query_id.startswith("\ufeff"):
        raise CorpusError(f"The query id {query_id!r} begins with a byte order mark.")
    for rank, doc_id in enumerate(sorted(hits, key=lambda doc_id: -hits[doc_id]), start=1):
        _check_id(doc_id, "document")
        score = float(hits[doc_id])
        if not math.isfinite(score):
            raise CorpusError(f"{query_id!r}, {doc_id!r}: the score {score} is not finite.")
        yield f"{query_id} Q0 {doc_id} {rank} {score!r} {tag}\n"


def read_run(path: Path) -> Run:
    """Read a run; the hits of each query are sorted by rank.

    Raises:
        CorpusError: The file cannot be read; or a line does not have six cells, has a rank or score
            that is not a number, repeats a document or rank of its query, or has a higher score
            than the rank above.
    """
    ranked: dict[str, dict[int, tuple[str, float, str]]] = {}
    with open_bytes(path) as stream:
        for row in read_text_lines(stream, str(path)):
            if isinstance(row, Reject):
                raise row.error()
            try:
                query_id, rank, doc_id, score = _parse(row.text)
                hits = ranked.setdefault(query_id, {})
                if rank in hits:
                    raise BadRow(f"query {query_id!r} had rank {rank} before", doc_id)
            except BadRow as bad:
                raise bad.at(row.source).error() from None
            hits[rank] = (doc_id, score, row.source)
    if not ranked:
        raise CorpusError(f"{path}: holds no hits.")
    return {query_id: _by_rank(hits) for query_id, hits in ranked.items()}


def _by_rank(hits: dict[int, tuple[str, float, str]]) -> dict[str, float]:
    ordered: dict[str, float] = {}
    above = math.inf
    for _, (doc_id, score, source) in sorted(hits.items()):
        if doc_id in ordered:
            reason = "the query has this document at an earlier rank too"
            raise BadRow(reason, doc_id).at(source).error()
        if score > above:
            reason = f"a higher score than the rank above it, {above}"
            raise BadRow(reason, doc_id).at(source).error()
        ordered[doc_id] = above = score
    return ordered


def _parse(line: str) -> tuple[str, int, str, float]:
    cells = _CELL.findall(line)
    if len(cells) != 6:
        raise BadRow(f"{len(cells)} cells, a run has six: query Q0 document rank score tag", line)
    try:
        rank, score = int(cells[3]), float(cells[4])
    except ValueError:
        raise BadRow("rank and score must be numbers", line) from None
    if not math.isfinite(score):
        raise BadRow("the score is not finite", line)
    return cells[0], rank, cells[2], score


def _check_id(value: str, kind: str) -> None:
    if not _CELL.fullmatch(value):
        raise CorpusError(
            f"The {kind} id {value!r} is empty or has white space, which no run file can hold. "
            "Use --json, or ids without white space."
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise CorpusError(f"The {kind} id {value!r} has a lone surrogate, which UTF-8 cannot hold.")
