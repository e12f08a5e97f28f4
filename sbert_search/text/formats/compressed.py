"""Decompress .xz and .zst files in small parts, within a memory limit.

A limit is needed because the file itself states how much memory the decompressor must allocate.
"""

from __future__ import annotations

import io
import lzma
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from sbert_search.base.memory import mib
from sbert_search.errors import CorpusError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_CHUNK_BYTES = 1 << 16


class XzStream(io.RawIOBase):
    """The decompressed content of one or several concatenated xz streams.

    Like `lzma.open`, it also reads the older format ``.lzma``.
    """

    def __init__(self, raw: BinaryIO, shown: str, most_bytes: int) -> None:
        self._raw, self._shown, self._most = raw, shown, most_bytes
        self._decoder = self._new()

    def readable(self) -> bool:
        """Return True, as readable file objects do."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Decompress bytes into the buffer; return how many, 0 at the end of the file."""
        view = memoryview(buffer).cast("B")
        if not len(view):
            return 0
        data = b""
        while not data:
            if self._decoder.eof:
                fed = self._next_stream()
                if not fed:
                    return 0
                self._decoder = self._new()
            else:
                fed = self._raw.read(_CHUNK_BYTES) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not fed:
                    raise EOFError("Compressed file ended before the end-of-stream marker")
            data = self._decompressed(fed, len(view))
        view[: len(data)] = data
        return len(data)

    def _next_stream(self) -> bytes:
        """Return the first bytes of the next stream, after any padding; b"" at the file's end."""
        fed = self._decoder.unused_data.lstrip(b"\0")
        while not fed:
            chunk = self._raw.read(_CHUNK_BYTES)
            if not chunk:
                return b""
            fed = chunk.lstrip(b"\0")
        return fed

    def _new(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=self._most)

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


PART_BYTES = 1 << 10


class ZstdStream(io.RawIOBase):
    """The decompressed content of one or several concatenated zstd frames.

    A read of pyarrow's stream fails as a whole if it meets damage. So each read takes at most
    `PART_BYTES`: no more than this is lost before the damage.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._stream = pa.CompressedInputStream(raw, "zstd")

    def readable(self) -> bool:
        """Return True, as readable file objects do."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Decompress bytes into the buffer; return how many, 0 at the end of the file."""
        view = memoryview(buffer).cast("B")
        data = self._stream.read(min(len(view), PART_BYTES))
        view[: len(data)] = data
        return len(data)
