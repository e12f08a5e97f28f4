"""Make the standard streams usable, and describe an exception in one line with a remedy."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from sbert_search.base.out_of_memory import has_memory_limit, ran_out_of_memory
from sbert_search.base.progress import tell

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


DEBUG = "SBERT_SEARCH_DEBUG"

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMEDIES = {
    **dict.fromkeys(
        _NO_ROOM,
        " Nothing that was committed is lost; make room and run the same command again.",
    ),
    errno.EMFILE: " Raise the limit on open files of this process (ulimit -n).",
    errno.ENFILE: " The whole system has too many files open; close some.",
    errno.ENOMEM: " Memory ran out: raise the limit of this process (ulimit -v), or free some.",
    errno.EAGAIN: " Raise the limit on processes and threads of this user (ulimit -u).",
}


def describe(error: Exception) -> str:
    """Return a message that names the failure and a remedy.

    If the variable SBERT_SEARCH_DEBUG is set, the traceback is printed to stderr as well.
    """
    if os.environ.get(DEBUG):
        import traceback

        tell("".join(traceback.format_exception(error)).rstrip("\n"))
    if isinstance(error, OSError):
        return _of_the_system(error)
    if ran_out_of_memory(error):
        return f"Memory ran out{_detail(error)}. Raise the limit of this process, or free some."
    if isinstance(error, ImportError):
        why = "The limit on the memory of this process (ulimit -v) may be too low."
        return f"A library cannot be loaded{_detail(error)}. " + (
            why if has_memory_limit() else "Install sbert-search again."
        )
    return (
        f"Unexpected {type(error).__name__}{_detail(error)}. This is a bug of sbert-search; please "
        f"report it with {_record(error)}."
    )


def _of_the_system(error: OSError) -> str:
    if error.filename == STDOUT:
        return f"{STDOUT} cannot be written: {error.strerror}. Only the printed output is lost."
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
    return f"{where}{error.strerror or error}.{_REMEDIES.get(error.errno or 0, '')}"


def _detail(error: Exception) -> str:
    lines = str(error).splitlines()
    return f": {lines[0].rstrip('.')}" if lines else ""


def _record(error: Exception) -> str:
    """Write the traceback to a temporary file; return a phrase that tells the user its place."""
    import tempfile
    import traceback

    try:
        fd, path = tempfile.mkstemp(prefix="sbert-search-error-", suffix=".txt")
        with os.fdopen(fd, "wb") as file:
            text = "".join(traceback.format_exception(error))
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError:
        return f"the traceback that {DEBUG}=1 shows"
    return f"the file {path}"
