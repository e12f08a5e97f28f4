"""Physical lines of a byte stream, numbered, in bounded memory."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator
from typing import BinaryIO

MAX_LINE_BYTES = 64 << 20
BOM = b"\xef\xbb\xbf"

Line = tuple[int, bytes, str]
"""Number from 1, the line without its end, and what is wrong with it ("" when nothing is)."""


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    r"""Yield the lines of a stream, which end in ``\n`` or ``\r\n``; a BOM at the start is dropped.

    A line over 64 MiB is not loaded: it comes empty, with its problem. A stream that breaks off (a
    cut gzip file, a failing disk) ends in one line that has the damage as its problem, so the
    lines before it are kept and the damage is counted like a bad row.
    """
    number = 0
    try:
        while data := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if number == 1 and data.startswith(BOM):
                data = data[len(BOM) :]
            if len(data) > MAX_LINE_BYTES and not data.endswith(b"\n"):
                _finish_line(stream)
                yield number, b"", f"line longer than {MAX_LINE_BYTES >> 20} MiB"
            else:
                yield number, data.removesuffix(b"\n").removesuffix(b"\r"), ""
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        yield number + 1, b"", f"the file is damaged here, what follows is lost: {error}"


def read_filled_lines(stream: BinaryIO, *, skip: int = 0) -> Iterator[Line]:
    """Yield the lines that are not blank, without the first ``skip`` of them."""
    for line in read_lines(stream):
        if line[2] or line[1].strip():
            if skip:
                skip -= 1
            else:
                yield line


def _finish_line(stream: BinaryIO) -> None:
    while (data := stream.readline(1 << 20)) and not data.endswith(b"\n"):
        pass
