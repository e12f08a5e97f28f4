"""Decompress .xz and .zst files, and recode text as UTF-8, in small parts within a memory limit.

A limit is needed because the file itself states how much memory the decompressor must allocate.
"""

from __future__ import annotations

import codecs
import io
import lzma
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from sbert_search.base.memory import mib
from sbert_search.errors import CorpusError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_CHUNK_BYTES = 1 << 16  # read from an .xz file at a time
PART_BYTES = 1 << 10  # decompressed from a .zst file at a time


class _Converted(io.RawIOBase):
    """Converted content, of which `_part` returns the next bytes, b"" at the end of the file."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._part(len(view)) if len(view) else b""
        view[: len(data)] = data
        return len(data)

    def _part(self, most: int) -> bytes:
        raise NotImplementedError


class XzStream(_Converted):
    """The decompressed content of one or several concatenated xz streams.

    Like `lzma.open`, it also reads the older format ``.lzma``.
    """

    def __init__(self, raw: BinaryIO, shown: str, most_bytes: int) -> None:
        self._raw, self._shown, self._most = raw, shown, most_bytes
        self._decoder = lzma.LZMADecompressor(memlimit=most_bytes)

    def _part(self, most: int) -> bytes:
        data = b""
        while not data:
            fed = b""
            if self._decoder.eof:
                fed = self._next_stream()
                if not fed:
                    return b""
                self._decoder = lzma.LZMADecompressor(memlimit=self._most)
            elif self._decoder.needs_input and not (fed := self._raw.read(_CHUNK_BYTES)):
                raise EOFError("Compressed file ended before the end-of-stream marker")
            data = self._decompressed(fed, most)
        return data

    def _next_stream(self) -> bytes:
        """Return the first bytes of the next stream, after any padding; b"" at the file's end."""
        fed = self._decoder.unused_data.lstrip(b"\0")
        while not fed and (chunk := self._raw.read(_CHUNK_BYTES)):
            fed = chunk.lstrip(b"\0")
        return fed

    def _decompressed(self, fed: bytes, most: int) -> bytes:
        try:
            return self._decoder.decompress(fed, most)
        except (lzma.LZMAError, MemoryError) as error:
            # An LZMAError due to the memory limit differs from other ones only in its message.
            if "limit" not in str(error) and not isinstance(error, MemoryError):
                raise
            raise CorpusError(
                f"{self._shown}: decompressing it takes more than {mib(self._most)}; allow more "
                "with --memory, or compress it with a smaller dictionary, as `xz -6` does."
            ) from error


class ZstdStream(_Converted):
    """The decompressed content of one or several concatenated zstd frames.

    A read of pyarrow's stream fails as a whole if it meets damage. So each read takes at most
    `PART_BYTES`: no more than this is lost before the damage.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._stream = pa.CompressedInputStream(raw, "zstd")

    def _part(self, most: int) -> bytes:
        return bytes(self._stream.read(min(most, PART_BYTES)))


class RecodedStream(_Converted):
    """A text in another encoding, as UTF-8; a byte that is invalid in the encoding stays invalid.

    Where even the characters after it are unknown, as in UTF-16, the text is damaged.
    """

    def __init__(self, raw: BinaryIO, encoding: str) -> None:
        self._raw, self._left, self._ended = raw, b"", False
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")

    def _part(self, most: int) -> bytes:
        while not self._left and not self._ended:
            data = self._raw.read(_CHUNK_BYTES)
            self._ended = not data
            try:
                text = self._decoder.decode(data, self._ended)
            except UnicodeDecodeError as error:
                raise OSError(str(error)) from None
            self._left = text.encode("utf-8", "surrogateescape")
        part, self._left = self._left[:most], self._left[most:]
        return part
