"""Make the standard streams usable if the caller closed them or set a narrow encoding."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDOUT = "standard output"


def prepare() -> None:
    """Open closed streams on the null device, and escape characters that cannot be encoded.

    If a stream stayed closed, the next file to be opened would get its descriptor, and output for
    the stream would go into that file. A write error of standard output has "standard output" as
    its file name. Write errors of standard error are dropped: they cannot be reported anywhere,
    and the work can continue.
    """
    for fd in (0, 1, 2):
        _open_if_closed(fd)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout = _writer(_Stdout(1, "wb", closefd=False), sys.stdout)
    sys.stderr = _writer(_Stderr(2, "wb", closefd=False), sys.stderr)


class _Stdout(io.FileIO):
    """Standard output; its first write error is raised with its name, and later output is dropped.

    Otherwise the error would be raised again when Python flushes the stream at exit.
    """

    _failed = False

    def write(self, data: ReadableBuffer) -> int:
        try:
            return _n_bytes(data) if self._failed else _write(self.fileno(), super().write, data)
        except OSError as error:
            self._failed = True
            error.filename = STDOUT
            raise


class _Stderr(io.FileIO):
    """Standard error; output that cannot be written is dropped."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return _write(self.fileno(), super().write, data)
        except OSError:
            return _n_bytes(data)


def _n_bytes(data: ReadableBuffer) -> int:
    return memoryview(data).nbytes


def _write(fd: int, write: Callable[[ReadableBuffer], int | None], data: ReadableBuffer) -> int:
    """Write some of the data; wait while a non-blocking pipe is full."""
    while (done := write(data)) is None:
        select.select([], [fd], [])
    return done


def _writer(raw: io.FileIO, old: TextIO | None) -> TextIO:
    """Wrap a raw stream as a text stream with the encoding of the old one, or else UTF-8."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=old.encoding if old else "utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )


def _open_if_closed(fd: int) -> None:
    try:
        os.fstat(fd)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is `fd`
        os.set_inheritable(opened, True)
