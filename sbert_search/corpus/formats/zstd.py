"""Decompress .zst files in small parts, so that the data before damage can be read."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PART_BYTES = 1 << 10


class ZstdStream(io.RawIOBase):
    """The decompressed content of one or several concatenated zstd frames.

    A read of pyarrow's stream fails as a whole if it meets damage. So each read takes at most
    `PART_BYTES`: no more than this is lost before the damage.

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
            OSError: The file is damaged, or ends inside a frame.
        """
        view = memoryview(buffer).cast("B")
        data = self._stream.read(min(len(view), PART_BYTES))
        view[: len(data)] = data
        return len(data)
