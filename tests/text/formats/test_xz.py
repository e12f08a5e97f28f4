from __future__ import annotations

import io
import lzma

import pytest

from sbert_search.text.formats.compressed import XzStream

CHUNK = 1 << 16  # bytes read at once
FIRST, SECOND = lzma.compress(b"first"), lzma.compress(b"second")


def contents(data: bytes) -> bytes:
    return io.BufferedReader(XzStream(io.BytesIO(data), "c.xz", 1 << 26)).read()


@pytest.mark.parametrize(
    "n_zeros",
    [0, 4, CHUNK - len(FIRST), CHUNK - len(FIRST) + 4, 2 * CHUNK - len(FIRST), 3 * CHUNK],
)
def test_streams_are_joined_whatever_the_padding_between_them(n_zeros: int) -> None:
    assert n_zeros % 4 == 0  # as the format asks
    padding = b"\0" * n_zeros
    assert contents(FIRST + padding + SECOND) == b"firstsecond"
    assert contents(FIRST + padding) == b"first"


def test_reading_no_bytes_ends_at_once() -> None:
    stream = XzStream(io.BytesIO(FIRST), "c.xz", 1 << 26)
    assert stream.read(0) == b""
    assert stream.read(5) == b"first"


def test_the_older_format_is_read() -> None:
    assert contents(lzma.compress(b"first", lzma.FORMAT_ALONE)) == b"first"


def test_a_cut_stream_and_bytes_of_another_kind_are_errors() -> None:
    with pytest.raises(EOFError):
        contents(FIRST + SECOND[:-3])
    with pytest.raises(lzma.LZMAError):
        contents(FIRST + b"not a stream of xz")
