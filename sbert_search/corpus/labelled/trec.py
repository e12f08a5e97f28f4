"""Read and write TREC run files, which hold search results.

A line is one hit: ``query_id Q0 doc_id rank score tag``, with ranks from 1. Only ASCII white space
separates cells, as in trec_eval; other Unicode spaces and line separators are part of an id.
trec_eval ignores the ranks: it sorts by score, as 32-bit floats, and breaks ties by document id.
The written scores therefore decrease strictly as 32-bit floats. This package reads the hits in the
order of their ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from sbert_search.base.files import replacing
from sbert_search.corpus.formats.rows import BadRow, Reject
from sbert_search.corpus.formats.text import read_text_lines
from sbert_search.corpus.sources import open_bytes
from sbert_search.errors import CorpusError
from sbert_search.records import Run

CELL = re.compile(r"[^ \t\n\v\f\r]+")
"""A cell of a line in TREC's formats; only ASCII white space separates cells."""


class RunCellError(CorpusError):
    """An id or a tag cannot be a cell of a run file."""


def write_run(
    run: Run | Iterable[tuple[str, Mapping[str, float]]],
    path: Path,
    *,
    tag: str = "sbert-search",
) -> None:
    """Write a run atomically; the hits of a query are sorted by descending score.

    Hits with equal scores keep their order, also in other programs: see `strictly_falling`. An
    iterable is written query by query, so that the
    whole run need not be in memory. A query without hits has no lines in the file. If no query has
    hits, the file is empty, and `read_run` refuses it.

    Args:
        run: Scores of the documents by query, as a mapping, or as an iterable of pairs in which
            each query must occur only once.
        path: The file. An existing file is replaced.
        tag: Name of the run, in the last cell of each line.

    Raises:
        RunCellError: An id or the tag is empty, has ASCII white space or cannot be encoded as
            UTF-8; or a query id begins with a byte order mark.
        CorpusError: A score is not finite, or the file cannot be written.
    """
    _check_cell(tag, "tag")
    try:
        with replacing(path) as file:
            for query_id, hits in run.items() if isinstance(run, Mapping) else run:
                file.write("".join(_lines(query_id, hits, tag)).encode())
    except OSError as error:
        raise CorpusError(f"{path}: cannot be written: {error.strerror}.") from error


def _lines(query_id: str, hits: Mapping[str, float], tag: str) -> Iterator[str]:
    _check_cell(query_id, "query id")
    if query_id.startswith("\ufeff"):
        raise RunCellError(f"The query id {query_id!r} begins with a byte order mark. Remove it.")
    for doc_id, score in hits.items():
        _check_cell(doc_id, "document id")
        if not math.isfinite(score):
            raise CorpusError(f"{query_id!r}, {doc_id!r}: the score {score} is not finite.")
    ranked = {doc_id: float(hits[doc_id]) for doc_id in sorted(hits, key=lambda d: -hits[d])}
    for rank, (doc_id, score) in enumerate(strictly_falling(ranked).items(), start=1):
        yield f"{query_id} Q0 {doc_id} {rank} {score!r} {tag}\n"


def strictly_falling(scores: Mapping[str, float]) -> dict[str, float]:
    """Change scores so that they decrease strictly as 32-bit floats, in the order of the mapping.

    trec_eval and MTEB compare scores as 32-bit floats and order equal scores by id. A score that is
    not below the one before it, as a 32-bit float, is lowered to the next smaller 32-bit float. All
    other scores stay as they are, except those beyond the range of finite 32-bit floats.

    Args:
        scores: Finite scores by document id, the best first.
    """
    exact = np.array([*scores.values()], dtype=np.float64)
    low, high = np.float32(-np.inf), np.float32(np.inf)
    with np.errstate(over="ignore", under="ignore"):
        single = exact.astype(np.float32)
        if np.isfinite(single).all() and (single[1:] < single[:-1]).all():
            return dict(scores)
        falling = single.copy()
        above, below = high, low
        for place in range(len(falling)):
            falling[place] = above = min(falling[place], np.nextafter(above, low))
        for place in reversed(range(len(falling))):  # raises scores below the finite floats
            falling[place] = below = max(falling[place], np.nextafter(below, high))
    changed = np.where(falling == single, exact, falling)
    return dict(zip(scores, changed.tolist(), strict=True))


def read_run(path: Path) -> Run:
    """Read a run; the hits of each query are sorted by rank.

    Ranks may begin at any whole number, since some systems count from 0, and may have gaps.

    Raises:
        CorpusError: The file cannot be read or has no hits; or a line does not have six cells, has
            a rank that is not a whole number or a score that is not a finite number, repeats a
            document or a rank of its query, or has a higher score than the rank before it.
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
            reason = f"its score {score} is higher than {above}, the score of the rank before it"
            raise BadRow(reason, doc_id).at(source).error()
        ordered[doc_id] = above = score
    return ordered


def _parse(line: str) -> tuple[str, int, str, float]:
    cells = CELL.findall(line)
    if len(cells) != 6:
        raise BadRow(f"{len(cells)} cells; a hit has six: query Q0 document rank score tag", line)
    try:
        if "_" in cells[3] + cells[4]:  # which Python takes for a separator of digits
            raise ValueError
        rank, score = int(cells[3]), float(cells[4])
    except ValueError:
        reason = f"the rank {cells[3]!r} must be a whole number, the score {cells[4]!r} a number"
        raise BadRow(reason, line) from None
    if not math.isfinite(score):
        raise BadRow("the score is not finite", line)
    return cells[0], rank, cells[2], score


def _check_cell(value: str, kind: str) -> None:
    if not CELL.fullmatch(value):
        raise RunCellError(
            f"The {kind} {value!r} is empty or has white space, which no run file can hold. Rename "
            "it, or use JSON, which holds every id: that of `search --json` or of `eval --out`."
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise RunCellError(f"The {kind} {value!r} has a lone surrogate, which UTF-8 cannot hold.")
