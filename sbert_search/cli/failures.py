"""Describe an exception other than a `SbertSearchError` in one line, with a remedy."""

from __future__ import annotations

import errno
import os

from sbert_search.base.out_of_memory import has_memory_limit, ran_out_of_memory
from sbert_search.base.progress import tell
from sbert_search.cli.streams import STDOUT

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
