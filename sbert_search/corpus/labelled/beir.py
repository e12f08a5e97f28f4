"""Read queries and relevance judgements (qrels) of a retrieval task from a BEIR folder.

Source: Thakur et al. 2021, BEIR (arXiv:2104.08663). A BEIR folder holds ``corpus.jsonl``,
``queries.jsonl`` and ``qrels/<split>.tsv``, as in the BEIR repository.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from sbert_search.base.memory import mib
from sbert_search.corpus.fields import FieldNames, row_parts
from sbert_search.corpus.formats.limits import RowLimit
from sbert_search.corpus.formats.rows import BadRow, Reject
from sbert_search.corpus.formats.text import read_text_lines
from sbert_search.corpus.labelled.trec import CELL
from sbert_search.corpus.sources import COMPRESSIONS, classify, field_names, open_bytes, read_rows
from sbert_search.corpus.spool import source_files
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.records import Document, Qrels, Query

_GRADE = re.compile(r"[-+]?[0-9]{1,9}")
_TREC_FORM = (
    "a file in TREC's format has no header and four columns, separated by white space: query id, "
    "iteration, document id, grade (an integer)"
)
_QUERY_BYTES = 256  # memory overhead of a query: the Query object and its dict entry


class _SpoolLifetime:
    """While this object lives, `source_files` keeps its temporary copy of standard input."""


def read_queries(
    path: Path, *, fields: FieldNames | None = None, memory_bytes: int | None = None
) -> list[Query]:
    """Read queries, in file order.

    Args:
        path: A BEIR folder; a file of rows, such as JSON lines, with the fields ``_id`` and
            ``text``; or ``-``, JSON lines on standard input.
        fields: Names of the id and text fields; None: they are detected.
        memory_bytes: Memory budget of the process in bytes; the queries may use an eighth of it.
            None: no limit.

    Raises:
        ConfigError: The queries need more than an eighth of the budget.
        CorpusError: The file is absent, empty or unreadable, a row is not a query or too large, or
            two rows have the same id.
    """
    owner = _SpoolLifetime()
    file = source_files("-", owner)[0] if str(path) == "-" else classify(queries_file(path))
    queries: dict[str, Query] = {}
    limit, taken = RowLimit.within(memory_bytes), 0
    names = field_names(file, limit=limit) or ["text"]
    roles = (fields or FieldNames()).resolve(
        names, file.shown, "Rename the field of the query to 'text'."
    )
    for row in read_rows(file, limit=limit):
        if isinstance(row, Reject):
            raise row.error()
        try:
            if not any(str(row.values.get(text) or "").strip() for text in roles.text):
                raise BadRow("the query has no text", row.values.get(roles.id or ""))
            parts = row_parts(row, roles, file.name)
            if parts.doc_id in queries:
                raise BadRow("an earlier query has the same id", parts.doc_id)
        except BadRow as bad:
            raise bad.at(row.source).error() from None
        queries[parts.doc_id] = Query(parts.doc_id, parts.text)
        taken += _QUERY_BYTES + sys.getsizeof(parts.doc_id) + sys.getsizeof(parts.text)
        if memory_bytes is not None and taken > memory_bytes // 8:
            raise ConfigError(
                f"{file.shown}: its queries take more than {mib(memory_bytes // 8)}, an eighth of "
                "--memory; raise --memory, or split the queries into several files."
            )
    if not queries:
        raise CorpusError(f"{file.shown}: holds no queries.")
    return list(queries.values())


def read_qrels(folder: Path, split: str = "test") -> Qrels:
    """Read ``qrels/<split>.tsv``, in BEIR's or in TREC's format.

    - BEIR: a header, then lines of query id, document id and grade, separated by tabs.
    - TREC: lines of query id, a cell that is ignored, document id and grade, separated by white
      space, without a header. The file is read so if its first line is such a line.

    Raises:
        CorpusError: The split does not exist (the message lists the existing splits) or has no
            judgements, the header is missing, a line is not a judgement, or a line gives another
            grade than an earlier line for the same query and document.
    """
    path = folder / "qrels" / f"{split}.tsv"
    if not path.exists():
        splits = sorted(file.stem for file in path.parent.glob("*.tsv"))
        raise CorpusError(f"{path}: no such file; existing splits: {', '.join(splits) or 'none'}.")
    qrels: dict[str, dict[str, int]] = {}
    cells_of = None
    with open_bytes(path) as stream:
        for row in read_text_lines(stream, str(path)):
            if isinstance(row, Reject):
                raise row.error()
            try:
                if cells_of is None:
                    cells_of = _trec_cells if _is_of_trec(row.text) else _beir_cells
                    if cells_of is _beir_cells:
                        _check_header(row.text)
                        continue
                _add_judgement(qrels, *cells_of(row.text))
            except BadRow as bad:
                raise bad.at(row.source).error() from None
    if not qrels:
        raise CorpusError(f"{path}: holds no judgements.")
    return qrels


def _is_of_trec(line: str) -> bool:
    cells = CELL.findall(line)
    return len(cells) == 4 and line.count("\t") != 2 and bool(_GRADE.fullmatch(cells[3]))


def _trec_cells(line: str) -> tuple[str, str, str]:
    cells = CELL.findall(line)
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


def _add_judgement(
    qrels: dict[str, dict[str, int]], query_id: str, doc_id: str, grade: str
) -> None:
    if not _GRADE.fullmatch(grade):
        raise BadRow("the grade must be an integer of at most nine digits", grade)
    first = qrels.setdefault(query_id, {}).setdefault(doc_id, int(grade))
    if first != int(grade):
        raise BadRow(
            f"an earlier line has the grade {first} for this query and document",
            f"{query_id} {doc_id} {grade}",
        )


def is_own_document(query: str, document: Document, grades: Mapping[str, int]) -> bool:
    """Whether a document with the id of a query is the query itself.

    It is if it has the text of the query, and is not judged relevant to it.

    Args:
        query: Text of the query.
        document: The document.
        grades: Judgements of the query.
    """
    texts = map(folded, (document.text, document.full_text))
    return folded(query) in texts and grades.get(document.doc_id, 0) < 1


def folded(text: str) -> str:
    """Return a text without differences in case and white space."""
    return " ".join(text.lower().split())


def queries_file(path: Path) -> Path:
    """Return the path itself, or for a BEIR folder its ``queries.jsonl``, plain or compressed.

    Raises:
        CorpusError: The folder has no ``queries.jsonl``.
    """
    if not path.is_dir():
        return path
    for suffix in ("", *COMPRESSIONS):
        if (file := path / f"queries.jsonl{suffix}").exists():
            return file
    raise CorpusError(f"{path}: has no queries.jsonl, plain or with {' '.join(COMPRESSIONS)}.")
