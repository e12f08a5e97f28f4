"""Read the queries and relevance judgements of a BEIR folder; read and write run files.

Source: Thakur et al. 2021, BEIR (arXiv:2104.08663). A BEIR folder holds ``corpus.jsonl``,
``queries.jsonl`` and ``qrels/<split>.tsv``, as in the BEIR repository.

A line of a run file is one hit: ``query_id Q0 doc_id rank score tag``, with ranks from 1. Only
ASCII white space separates cells, as in trec_eval; other Unicode spaces and line separators are
part of an id. trec_eval ignores the ranks: it sorts by score, as 32-bit floats, and breaks ties by
document id. The written scores therefore decrease strictly as 32-bit floats. This package reads the
hits in the order of their ranks. A run file whose name ends in ``.json`` is an object of objects,
``{query_id: {doc_id: score}}``, as of ranx, and holds every id.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sbert_search.base.files import replacing
from sbert_search.base.memory import mib
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.records import Document, Qrels, Query, Run
from sbert_search.text.fields import FieldNames, row_parts
from sbert_search.text.formats.files import Reading
from sbert_search.text.formats.lines import parse_object, read_text_lines
from sbert_search.text.formats.rows import BadRow, RawRow, RowLimit, map_rows
from sbert_search.text.labelled.pairs import decimal_text
from sbert_search.text.labelled.records import Triplet
from sbert_search.text.sources import (
    COMPRESSIONS,
    as_read,
    classify,
    open_bytes,
    read_rows,
    require_field_names,
)
from sbert_search.text.spool import source_files

_CELL = re.compile(r"[^ \t\n\v\f\r]+")
"""A cell of a line in TREC's formats; only ASCII white space separates cells."""


class RunCellError(CorpusError):
    """An id or a tag cannot be a cell of a run file."""


def write_run(
    run: Run | Iterable[tuple[str, Mapping[str, float]]], path: Path, *, tag: str = "sbert-search"
) -> int:
    """Write a run atomically, the best hits of a query first; return the number of hits.

    Hits with equal scores keep their order, also in other programs: see `strictly_falling`. An
    iterable, in which each query must occur only once, is written query by query in TREC's
    format. An id that this format cannot hold raises `RunCellError`.
    """
    _check_cell(tag, "tag")
    queries = run.items() if isinstance(run, Mapping) else run
    ranked = ((query_id, _ranked(query_id, hits)) for query_id, hits in queries)
    try:
        with replacing(path) as file:
            if path.suffix.lower() == ".json":
                whole = dict(ranked)
                file.write(json.dumps(whole).encode())
                return sum(map(len, whole.values()))
            n_hits = 0
            for query_id, hits in ranked:
                file.write("".join(_lines(query_id, hits, tag)).encode())
                n_hits += len(hits)
            return n_hits
    except OSError as error:
        raise CorpusError(f"{path}: cannot be written: {error.strerror}.") from error


def _lines(query_id: str, hits: Mapping[str, float], tag: str) -> Iterator[str]:
    _check_cell(query_id, "query id")
    if query_id.startswith("\ufeff"):
        raise RunCellError(f"The query id {query_id!r} begins with a byte order mark. Remove it.")
    for rank, (doc_id, score) in enumerate(hits.items(), start=1):
        _check_cell(doc_id, "document id")
        yield f"{query_id} Q0 {doc_id} {rank} {score!r} {tag}\n"


def _ranked(query_id: str, hits: Mapping[str, float]) -> dict[str, float]:
    for doc_id, score in hits.items():
        if not abs(score) <= sys.float_info.max:  # NaN is neither
            raise CorpusError(f"{query_id!r}, {doc_id!r}: the score {score} is not finite.")
    return strictly_falling({d: float(hits[d]) for d in sorted(hits, key=lambda d: -hits[d])})


def strictly_falling(scores: Mapping[str, float]) -> dict[str, float]:
    """Change scores, the best first, so that they decrease strictly as 32-bit floats.

    trec_eval and MTEB compare scores so, and order equal ones by id. A score that is not below the
    one before it is lowered to the next smaller 32-bit float. All other scores stay as they are,
    except those beyond the range of finite 32-bit floats.
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
    """Read a run; the hits of each query are sorted by rank, and their scores must not rise.

    Ranks may begin at any whole number, since some systems count from 0, and may have gaps. Hits in
    JSON have no ranks, and are sorted by score.
    """
    ranked: dict[str, dict[int, tuple[str, float, str]]] = {}

    def add(row: RawRow) -> None:
        query_id, rank, doc_id, score = _parse(row.text)
        hits = ranked.setdefault(query_id, {})
        if rank in hits:
            raise BadRow(f"query {query_id!r} had rank {rank} before", doc_id)
        hits[rank] = (doc_id, score, row.source)

    with open_bytes(path) as stream:
        if path.suffix.lower() == ".json":
            run = _read_json(path, stream.read())
        else:
            map_rows(read_text_lines(stream, str(path)), add)
            run = {query_id: _by_rank(hits) for query_id, hits in ranked.items()}
    if not run:
        raise CorpusError(f"{path}: holds no hits.")
    return run


def _read_json(path: Path, data: bytes) -> dict[str, dict[str, float]]:
    run = {}
    try:
        for query_id, hits in parse_object(data).items():
            if not isinstance(hits, dict) or {*map(type, hits.values())} - {int, float}:
                raise BadRow(f"query {query_id!r} has no object of scores by document id", hits)
            run[query_id] = _ranked(query_id, hits)
    except BadRow as bad:
        raise bad.at(str(path)).error() from None
    return run


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
    cells = _CELL.findall(line)
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
    if not _CELL.fullmatch(value):
        raise RunCellError(
            f"The {kind} {value!r} is empty or has white space, which TREC's format cannot hold. "
            "Rename it; `search --run-out NAME.json` writes a run of JSON, which holds every id."
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise RunCellError(f"The {kind} {value!r} has a lone surrogate, which UTF-8 cannot hold.")


_GRADE = re.compile(r"[-+]?[0-9]{1,9}")
_TREC_FORM = (
    "a file in TREC's format has no header and four columns, separated by white space: query id, "
    "iteration, document id, grade (an integer)"
)
_QUERY_BYTES = 256  # memory overhead of a query: the Query object and its dict entry


def read_queries(
    path: Path, *, fields: FieldNames | None = None, encoding: str | None = None
) -> list[Query]:
    """Read queries, in file order, from a BEIR folder, a file of rows, or JSON lines on ``-``.

    Their fields are detected unless ``fields`` names them. They may take an eighth of the memory
    limit of the process. ``encoding`` is that of a file that is not UTF-8.
    """
    owner = set[str]()  # while it lives, `source_files` keeps its copy of standard input
    file = source_files("-", owner)[0] if str(path) == "-" else classify(queries_file(path))
    queries: dict[str, Query] = {}
    limit, taken = RowLimit.within(), 0
    file = as_read(file, Reading(encoding), limit)
    names = require_field_names(file, "queries", limit) or ["text"]
    roles = (fields or FieldNames()).resolve(
        names, file.shown, "Rename the field of the query to 'text'."
    )

    def add(row: RawRow) -> None:
        nonlocal taken
        texts = {*roles.text, roles.title}
        values = {n: decimal_text(v) if n in texts else v for n, v in row.values.items()}
        row = replace(row, values=values)
        if not any(str(row.values.get(text) or "").strip() for text in roles.text):
            raise BadRow("the query has no text", row.values.get(roles.id or ""))
        parts = row_parts(row, roles, file.name)
        if parts.doc_id in queries:
            raise BadRow("an earlier query has the same id", parts.doc_id)
        queries[parts.doc_id] = Query(parts.doc_id, parts.text)
        taken += _QUERY_BYTES + sys.getsizeof(parts.doc_id) + sys.getsizeof(parts.text)
        if limit.budget is not None and taken > limit.budget // 8:
            raise ConfigError(
                f"{file.shown}: its queries take more than {mib(limit.budget // 8)}, an eighth of "
                "--memory; raise --memory, or split the queries into several files."
            )

    map_rows(read_rows(file, limit=limit), add)
    return list(queries.values())


def read_qrels(folder: Path, split: str = "test") -> Qrels:
    """Read ``qrels/<split>.tsv``, in BEIR's or in TREC's format.

    - BEIR: a header, then lines of query id, document id and grade, separated by tabs.
    - TREC, if the first line has this form: query id, a cell that is ignored, document id, grade;
      separated by white space.
    """
    path = folder / "qrels" / f"{split}.tsv"
    if not path.exists():
        splits = sorted(file.stem for file in path.parent.glob("*.tsv"))
        raise CorpusError(f"{path}: no such file; existing splits: {', '.join(splits) or 'none'}.")
    return read_qrels_file(path)


def read_qrels_file(path: Path) -> Qrels:
    """Read relevance judgements as `read_qrels` does, from any file."""
    qrels: dict[str, dict[str, int]] = {}
    cells_of = None

    def add(row: RawRow) -> None:
        nonlocal cells_of
        if cells_of is None:
            cells_of = _trec_cells if _is_of_trec(row.text) else _beir_cells
            if cells_of is _beir_cells:
                _check_header(row.text)
                return
        query_id, doc_id, grade = cells_of(row.text)
        if not _GRADE.fullmatch(grade):
            raise BadRow("the grade must be an integer of at most nine digits", grade)
        first = qrels.setdefault(query_id, {}).setdefault(doc_id, int(grade))
        if first != int(grade):
            raise BadRow(
                f"an earlier line has the grade {first} for this query and document",
                f"{query_id} {doc_id} {grade}",
            )

    with open_bytes(path) as stream:
        map_rows(read_text_lines(stream, str(path)), add)
    if not qrels:
        raise CorpusError(f"{path}: holds no judgements.")
    return qrels


def _is_of_trec(line: str) -> bool:
    cells = _CELL.findall(line)
    return len(cells) == 4 and line.count("\t") != 2 and bool(_GRADE.fullmatch(cells[3]))


def _trec_cells(line: str) -> tuple[str, str, str]:
    cells = _CELL.findall(line)
    if len(cells) != 4:
        raise BadRow(f"{len(cells)} cells, after a first line of TREC's format; {_TREC_FORM}", line)
    return cells[0], cells[2], cells[3]


def _beir_cells(line: str) -> tuple[str, str, str]:
    cells = line.split("\t")
    if len(cells) != 3 or not all(cell.strip() for cell in cells):
        raise BadRow(
            "not three cells separated by tabs: query id, document id, grade, after a header; "
            f"{_TREC_FORM}",
            line,
        )
    return cells[0], cells[1], cells[2]


def _check_header(line: str) -> None:
    if _GRADE.fullmatch(_beir_cells(line)[2]):
        raise BadRow(
            f"the first line must be a header: query-id, corpus-id, score; {_TREC_FORM}", line
        )


def collection_of_pairs(
    pairs: Sequence[Triplet],
) -> tuple[list[dict[str, object]], list[Query], Qrels]:
    """Make a judged collection of pairs: rows of documents, queries, and their judgements.

    Every text but the anchors is a document, and every anchor a query, to which its positives are
    relevant. Equal texts are one document, and a query has the id of a document with its text. Ids
    are the number of the pair with the text: ``3`` for an anchor, ``3.1``, ``3.2``, ... for others.
    """
    ids: dict[str, str] = {}
    for row, pair in enumerate(pairs, start=1):
        for n, text in enumerate((pair.anchor, pair.positive, *pair.negatives)):
            ids.setdefault(text, f"{row}.{n}" if n else str(row))
    documents = dict.fromkeys(text for p in pairs for text in (p.positive, *p.negatives))
    qrels: dict[str, dict[str, int]] = {}
    for pair in pairs:
        qrels.setdefault(ids[pair.anchor], {})[ids[pair.positive]] = 1
    return (
        [{"_id": ids[text], "text": text} for text in documents],
        [Query(ids[text], text) for text in dict.fromkeys(pair.anchor for pair in pairs)],
        qrels,
    )


def is_own_document(query: str, document: Document, grades: Mapping[str, int]) -> bool:
    """Whether a document with the id of a query is the query itself.

    It is if it has the text of the query, and is not judged relevant to it in its ``grades``.
    """
    texts = map(fold_case_and_space, (document.text, document.full_text))
    return fold_case_and_space(query) in texts and grades.get(document.doc_id, 0) < 1


def fold_case_and_space(text: str) -> str:
    """Return a text without differences in case and white space."""
    return " ".join(text.lower().split())


def queries_file(path: Path) -> Path:
    """Return the path itself, or for a BEIR folder its ``queries.jsonl``, plain or compressed."""
    if not path.is_dir():
        return path
    for suffix in ("", *COMPRESSIONS):
        if (file := path / f"queries.jsonl{suffix}").exists():
            return file
    raise CorpusError(f"{path}: has no queries.jsonl, plain or with {' '.join(COMPRESSIONS)}.")
