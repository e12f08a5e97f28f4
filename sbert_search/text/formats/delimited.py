"""Read CSV and TSV files with a header; quoted cells may contain line ends; values are text."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO

from sbert_search.base.memory import MAX_ROW_BYTES
from sbert_search.errors import CorpusError
from sbert_search.text.formats.lines import Line, read_lines
from sbert_search.text.formats.rows import NO_BUDGET, BadRow, RawRow, Reject, RowLimit, check_text

_DELIMITERS = ",;\t|"
_CSV_PROBLEMS = {  # what some messages of the csv module mean, by a part of the message
    "unexpected end of data": "a quote is not closed before the end of the file",
    "expected after": "text after the closing quote of a cell; double each quote inside a cell",
    "new-line character": "a carriage return outside quotes; end the lines with LF or CRLF",
}


def read_delimited(
    stream: BinaryIO,
    shown: str,
    *,
    delimiter: str | None,
    skip: int = 0,
    limit: RowLimit = NO_BUDGET,
) -> Iterator[RawRow | Reject]:
    """Yield one row per record; an empty line is no record, and an empty cell has the value None.

    An unclosed quote extends its record to the end of the file, and the record is rejected.

    Args:
        stream: Bytes of the file, decompressed.
        shown: Name of the file in messages.
        delimiter: Separator of the cells. None: of comma, semicolon, tab and vertical bar, the most
            frequent one outside quotes in the first line of the header; comma if there is none.
        skip: Number of rows to skip.
        limit: Maximum size of a row.

    Raises:
        CorpusError: The header cannot be read, or names a column twice.
    """
    header: list[str] | None = None
    for number, cells in read_records(stream, delimiter, limit):
        if header is None:
            header = _header(cells, f"{shown}:{number}")
        elif skip:
            skip -= 1
        else:
            yield _row(header, cells, number, f"{shown}:{number}")


def read_records(
    stream: BinaryIO, delimiter: str | None, limit: RowLimit = NO_BUDGET
) -> Iterator[tuple[int, list[str] | BadRow]]:
    """Yield the number of each record's first line, and its cells; a `BadRow` for a bad record."""
    # The csv module has one limit on the size of a cell for the whole process, 128 KiB by default.
    # If the user has set a larger limit than this package needs, it is kept.
    csv.field_size_limit(max(MAX_ROW_BYTES, csv.field_size_limit()))
    read = read_lines(stream, limit)
    if delimiter is None:
        delimiter, read = _with_likely_delimiter(read)
    lines = _Lines(read, delimiter, limit)
    records = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        number = lines.begin_record()
        try:
            cells = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            said = str(error)
            if "field limit" in said:
                lines.finish_record()
            problem = next((text for part, text in _CSV_PROBLEMS.items() if part in said), said)
            yield number, BadRow(f"broken record: {problem}", lines.last)
        except BadRow as bad:
            yield number, bad
        else:
            if cells:
                yield number, cells


class _Lines:
    """Iterator over decoded lines for `csv.reader`, which takes more lines while a quote is open.

    Invalid UTF-8 becomes lone surrogates, so that the record is read to its end. Later `check_text`
    finds the surrogates, and the record is rejected.
    """

    def __init__(self, lines: Iterator[Line], delimiter: str, limit: RowLimit) -> None:
        self.number = 0
        self.last = ""
        self._lines = lines
        self._delimiter, self._limit = delimiter, limit
        self._record_bytes = self._quotes = 0

    def begin_record(self) -> int:
        """Start a record and return the number of its first line."""
        self._record_bytes = self._quotes = 0
        return self.number + 1

    def finish_record(self) -> None:
        """Skip the lines up to the end of an open quote: these lines belong to the bad record."""
        while self._quotes % 2:
            line = next(self._lines, None)
            if line is None:
                return
            self.number = line[0]
            self._quotes += line[1].count(b'"')

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self.number, data, problem = next(self._lines)
        if problem:
            raise BadRow(problem)
        self._quotes += data.count(b'"')
        try:
            self._record_bytes += self._limit.check_cells(data, self._delimiter, self._record_bytes)
        except BadRow:
            self.finish_record()
            raise
        self.last = data.decode("utf-8", "surrogateescape")
        return self.last + "\n"


def _with_likely_delimiter(lines: Iterator[Line]) -> tuple[str, Iterator[Line]]:
    """Guess the delimiter from the first line that is not blank; return it and all lines."""
    begin = list[Line]()
    for line in lines:
        begin.append(line)
        if line[1].strip():
            break
    header = begin[-1][1] if begin else b""
    unquoted = re.sub(rb'"[^"]*"', b"", header).decode("utf-8", "replace")
    likely = max(_DELIMITERS, key=unquoted.count)  # of equally frequent ones, the first
    return likely, chain(begin, lines)


def _header(cells: list[str] | BadRow, source: str) -> list[str]:
    if isinstance(cells, BadRow):
        raise cells.at(source).error()
    names = [cell.strip() or f"column{number}" for number, cell in enumerate(cells, start=1)]
    try:
        for name in names:
            check_text(name, name)
    except BadRow as bad:
        raise bad.at(source).error() from None
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise CorpusError(f"{source}: the header names {repeated[0]!r} twice. Rename one of them.")
    return names


def _row(header: list[str], cells: list[str] | BadRow, number: int, source: str) -> RawRow | Reject:
    if isinstance(cells, BadRow):
        return cells.at(source)
    if len(cells) != len(header):
        reason = f"{len(cells)} cells where the header has {len(header)}"
        return BadRow(reason, cells[0] if cells else "").at(source)
    values = {name: cell or None for name, cell in zip(header, cells, strict=True)}
    return RawRow(source, number, values, typed=False)
