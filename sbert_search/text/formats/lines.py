"""Read files of lines, in bounded memory: plain text and JSON lines."""

from __future__ import annotations

import json
import lzma
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NoReturn

from sbert_search.text.formats.rows import NO_BUDGET, BadRow, RawRow, Reject, RowLimit, decode

BOM = b"\xef\xbb\xbf"  # the byte order mark of UTF-8

Line = tuple[int, bytes, str]
"""Line number from 1, the line without its line end, and the problem with the line ("": none)."""


def read_lines(stream: BinaryIO, limit: RowLimit = NO_BUDGET) -> Iterator[Line]:
    r"""Yield the lines of a stream, which end in ``\n`` or ``\r\n``; a BOM at the start is dropped.

    A line over the limit is skipped in small parts and yielded as an empty line with a problem. A
    damaged stream (a truncated gzip file, a failing disk) ends with an empty line whose problem is
    the damage. So the lines before the damage are kept, and the damage counts as one bad row.
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
                del data
                _finish_line(stream)
                yield number, b"", f"line longer than {limit}"
            else:
                yield number, data.removesuffix(b"\n").removesuffix(b"\r"), ""
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        yield number + 1, b"", f"the file is damaged here; the rest is lost: {error}"


def read_filled_lines(
    stream: BinaryIO, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[Line]:
    """Yield the lines that are not blank or have a problem; skip the first ``skip`` of these."""
    for line in read_lines(stream, limit):
        if line[2] or line[1].strip():
            if skip:
                skip -= 1
            else:
                yield line


def _finish_line(stream: BinaryIO) -> None:
    while (data := stream.readline(1 << 20)) and not data.endswith(b"\n"):
        pass


def read_text_lines(
    stream: BinaryIO, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield one row per line, with the field ``text``; blank lines are skipped."""
    for number, data, problem in read_filled_lines(stream, skip=skip, limit=limit):
        source = f"{shown}:{number}"
        try:
            if problem:
                raise BadRow(problem)
            limit.check_text(data)
            yield RawRow(source, number, {"text": decode(data)})
        except BadRow as bad:
            yield bad.at(source)


def read_jsonl(
    stream: BinaryIO, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield one row per line; blank lines are skipped.

    Args:
        stream: Bytes of the file, decompressed.
        shown: Name of the file in messages.
        skip: Number of rows to skip without parsing them.
        limit: Maximum size of a row.
    """
    for number, data, problem in read_filled_lines(stream, skip=skip, limit=limit):
        source = f"{shown}:{number}"
        if problem:
            yield Reject(source, problem)
            continue
        try:
            limit.check_json(data)
            yield RawRow(source, number, parse_object(data))
        except BadRow as bad:
            yield bad.at(source)


def parse_object(data: bytes) -> dict[str, object]:
    """Parse one JSON object strictly: UTF-8, no NaN or Infinity, limited nesting.

    Raises:
        BadRow: The bytes are not such an object. For broken JSON the reason names the column.
    """
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
