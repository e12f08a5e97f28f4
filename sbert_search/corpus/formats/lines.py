"""Read numbered lines of a byte stream, in bounded memory."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from sbert_search.corpus.formats.limits import NO_BUDGET, RowLimit

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
