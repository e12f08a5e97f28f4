"""Decompress .zst files in small parts."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PART_BYTES = 1 << 10


class ZstdStream(io.RawIOBase):
    """The decompressed content of one or several concatenated zstd frames.

    A read of pyarrow's stream that meets damage fails as a whole, so only a small part before the
    damage is lost.

    Args:
        raw: The compressed file.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._stream = pa.CompressedInputStream(raw, "zstd")

    def readable(self) -> bool:
        """Return True, as readable file objects do."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Decompress bytes into the buffer; return how many, 0 at the end of the file.

        Raises:
            OSError: The file is damaged, or ends before its last frame does.
        """
        view = memoryview(buffer).cast("B")
        data = self._stream.read(min(len(view), _PART_BYTES))
        view[: len(data)] = data
        return len(data)
