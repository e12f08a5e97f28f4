"""Read files of lines, in bounded memory: plain text, JSON lines, CSV and TSV with a header."""

from __future__ import annotations

import csv
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO, NoReturn

from sbert_search.base.memory import MAX_ROW_BYTES
from sbert_search.errors import CorpusError
from sbert_search.text.formats.rows import (
    BOM,
    NO_BUDGET,
    BadRow,
    RawRow,
    Reject,
    RowLimit,
    check_text,
    decode,
    raw_rows,
    repeated_name,
)

Line = tuple[int, bytes | BadRow]
"""Line number from 1, and the line without its line end, or why it cannot be read."""

# Errors of a stream that is cut off, damaged or on a failing disk.
DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)


def damaged(error: Exception) -> BadRow:
    """Return why the rest of a damaged stream cannot be read."""
    return BadRow(f"the file is damaged here; the rest is lost: {error}")


def read_lines(stream: BinaryIO, limit: RowLimit = NO_BUDGET) -> Iterator[Line]:
    r"""Yield the lines of a stream, which end in ``\n`` or ``\r\n``; a BOM at the start is dropped.

    A line over the limit is skipped in small parts and yielded as a `BadRow`. So is the damage of a
    stream (a truncated gzip file, a failing disk), after the lines before it.
    """
    number = 0
    try:
        while data := stream.readline(limit.n_bytes + 1):
            number += 1
            if number == 1 and data.startswith(BOM):
                data = data[len(BOM) :]
                if not data.endswith(b"\n"):  # the limit does not count the BOM
                    data += stream.readline(len(BOM))
            if len(data) > limit.n_bytes and not data.endswith(b"\n"):
                while data and not data.endswith(b"\n"):
                    data = stream.readline(1 << 20)
                yield number, BadRow(f"line longer than {limit}")
            else:
                yield number, data.removesuffix(b"\n").removesuffix(b"\r")
    except DAMAGE as error:
        yield number + 1, damaged(error)


def read_text_lines(
    stream: BinaryIO, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield one row per line, with the field ``text``; blank lines are skipped."""
    lines = filter(_is_filled, read_lines(stream, limit))
    return raw_rows(lines, f"{shown}:", lambda line: _text_row(line, limit), skip)


def _text_row(line: bytes, limit: RowLimit) -> dict[str, object]:
    limit.check_text(line)
    return {"text": decode(line)}


def read_jsonl(
    stream: BinaryIO, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield one row per line; blank lines are skipped, and skipped rows are not parsed."""
    lines = filter(_is_filled, read_lines(stream, limit))
    return raw_rows(lines, f"{shown}:", lambda line: parse_object(line, limit), skip)


def _is_filled(line: Line) -> bool:
    return isinstance(line[1], BadRow) or bool(line[1].strip())


def parse_object(data: bytes, limit: RowLimit = NO_BUDGET) -> dict[str, object]:
    """Parse one JSON object strictly: UTF-8, no NaN or Infinity, limited nesting; else `BadRow`.

    An object whose values may take more memory than the budget of the limit allows is not parsed.
    """
    limit.check_json(data)
    try:
        value = _DECODER.decode(decode(data))
    except json.JSONDecodeError as error:
        near = error.doc[max(0, error.pos - 20) : error.pos + 20]
        raise BadRow(f"broken JSON at column {error.colno}: {error.msg}", near) from None
    except RecursionError:
        raise BadRow("JSON nested too deep", data) from None
    except ValueError:  # Python refuses to parse an integer of more than 4,300 digits
        raise BadRow("broken JSON: an integer is too long; write it as text", data) from None
    if not isinstance(value, dict):
        raise BadRow("the row is not a JSON object", value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise BadRow(f"{name} is not a JSON value; write null")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


_DELIMITERS = ",;\t|"
_SEP = re.compile(rf'"?sep=([{_DELIMITERS}])"?'.encode(), re.IGNORECASE)
_CSV_PROBLEMS = {  # what some messages of the csv module mean, by a part of the message
    "unexpected end of data": "a quote is not closed before the end of the file",
    "expected after": "text after the closing quote of a cell; double each quote inside a cell",
    "new-line character": "a carriage return outside quotes; end the lines with LF or CRLF",
}
_ROWS_IN_A_CELL = (
    "a quote is open from here to line {}, and each of these lines has the cells of a row; remove "
    "the quote, or double it and put its cell in quotes"
)


def read_delimited(
    stream: BinaryIO,
    shown: str,
    *,
    delimiter: str | None,
    skip: int = 0,
    limit: RowLimit = NO_BUDGET,
) -> Iterator[RawRow | Reject]:
    """Yield one row per record; an empty cell has the value None.

    Skipped are empty lines, and records of several cells that are all empty, as Excel writes them.
    An unclosed quote extends its record to the end of the file, and the record is rejected.
    ``delimiter`` None: the one that a first line such as Excel's ``sep=;`` names; else, of
    `_DELIMITERS`, the most frequent one outside quotes in the header.
    """
    records = _read_records(stream, delimiter, limit)
    for number, cells in itertools.islice(records, 1):
        header = header_of(cells, f"{shown}:{number}")
        yield from raw_rows(records, f"{shown}:", partial(_values, header), skip, typed=False)


def _read_records(
    stream: BinaryIO, delimiter: str | None, limit: RowLimit
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
            lines.width = lines.width or len(cells)
            if delimiter == "\t" and lines.are_rows:
                yield number, BadRow(_ROWS_IN_A_CELL.format(lines.number), cells[0])
            elif any(cells) or len(cells) == 1:
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
        self.width = 0  # number of cells of the header
        self.begin_record()

    def begin_record(self) -> int:
        """Start a record and return the number of its first line."""
        self._record_bytes = self._quotes = self._n_lines = self._n_rows = 0
        return self.number + 1

    @property
    def are_rows(self) -> bool:
        """Whether the record has several lines, each of them with as many cells as the header."""
        return self.width > 1 and self._n_rows == self._n_lines > 1

    def finish_record(self) -> None:
        """Skip the lines up to the end of an open quote: these lines belong to the bad record."""
        while self._quotes % 2 and (line := next(self._lines, None)):
            self.number, data = line
            self._quotes += 0 if isinstance(data, BadRow) else data.count(b'"')

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self.number, data = next(self._lines)
        if isinstance(data, BadRow):
            raise data
        self._quotes += data.count(b'"')
        try:
            self._record_bytes += self._limit.check_cells(data, self._delimiter, self._record_bytes)
        except BadRow:
            self.finish_record()
            raise
        self.last = data.decode("utf-8", "surrogateescape")
        self._n_lines += 1
        self._n_rows += self.last.count(self._delimiter) + 1 == self.width
        return self.last + "\n"


def _with_likely_delimiter(lines: Iterator[Line]) -> tuple[str, Iterator[Line]]:
    """Return the delimiter, found in the first line that is not blank, and all lines."""
    begin, header = list[Line](), b""
    for line in lines:
        if line[0] == 1 and isinstance(line[1], bytes) and (named := _SEP.fullmatch(line[1])):
            return named[1].decode(), itertools.chain([(1, b"")], lines)
        begin.append(line)
        if isinstance(line[1], bytes) and line[1].strip():
            header = line[1]
            break
    unquoted = re.sub(rb'"[^"]*"', b"", header).decode("utf-8", "replace")
    likely = max(_DELIMITERS, key=unquoted.count)  # of equally frequent ones, the first
    return likely, itertools.chain(begin, lines)


def header_of(cells: list[str] | BadRow, source: str) -> list[str]:
    """Return the names of columns, of which an empty one is named by its number."""
    if isinstance(cells, BadRow):
        raise cells.at(source).error()
    names = [cell.strip() or f"column{number}" for number, cell in enumerate(cells, start=1)]
    try:
        for name in names:
            check_text(name, name)
    except BadRow as bad:
        raise bad.at(source).error() from None
    if (repeated := repeated_name(names)) is not None:
        raise CorpusError(f"{source}: the header names {repeated!r} twice. Rename one of them.")
    return names


def _values(header: list[str], cells: list[str]) -> dict[str, str | None]:
    if len(cells) != len(header):
        reason = f"{len(cells)} cells where the header has {len(header)}"
        raise BadRow(reason, cells[0] if cells else "")
    return {name: cell or None for name, cell in zip(header, cells, strict=True)}
