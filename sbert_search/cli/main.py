"""The entry point: prepare the streams, load the command, run it and map errors to exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 finished with rejected rows, 130 interrupted.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from sbert_search.base.out_of_memory import has_memory_limit, ran_out_of_memory
from sbert_search.base.processor import limit_threads
from sbert_search.base.progress import show_notes, tell
from sbert_search.cli.lazy_group import LazyGroup, suggestion
from sbert_search.errors import ConfigError, QueryError, SbertSearchError
from sbert_search.version import __version__

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


STDOUT = "standard output"


def prepare() -> None:
    """Open closed streams on the null device, and escape characters that cannot be encoded.

    If a stream stayed closed, the next file to be opened would get its descriptor, and output for
    the stream would go into that file.
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
    """Return a message that names the failure and a remedy; `DEBUG` also prints the traceback."""
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


INTERRUPTED = 130


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 finished with rejected rows, "
    "130 interrupted. Results go to stdout; progress, notes and errors go to stderr. Options that "
    "several commands share are also read from environment variables such as SBERT_SEARCH_DEVICE. "
    "SBERT_SEARCH_DEBUG=1 prints the traceback of an unexpected error.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File of default values for options.  [default: sbert-search.toml, if there is one]",
)
@click.option(
    "--show-config",
    is_flag=True,
    help="Print the options of the command, and where their values come from, instead of running "
    "it.",
)
@click.version_option(__version__, prog_name="sbert-search")
def cli(config: Path | None, show_config: bool) -> None:
    """Train sentence encoders, embed text, and build, update and search indexes."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors are printed to stderr."""
    show_notes()
    try:
        code = cli.main(arguments, prog_name="sbert-search", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        shown = io.StringIO()
        _with_near_options(error).show(shown)
        tell(shown.getvalue().rstrip("\n"))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as abort:
        _complain(_interrupted(abort))
        return INTERRUPTED
    except SbertSearchError as error:
        _complain(str(error))
        return 2 if isinstance(error, (ConfigError, QueryError)) else 1
    except BrokenPipeError:
        return 1  # the program that read stdout has ended, as in `... | head`
    except Exception as error:
        _complain(describe(error))
        return 1
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    prepare()
    limit_threads()
    _exit(run())


def _exit(code: int) -> NoReturn:
    """End this process without freeing modules, which would delay the end of short commands.

    If other threads still run, Python ends in its usual way, which waits for them.
    """
    if threading.active_count() > 1:
        sys.exit(code)
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _with_near_options(error: click.ClickException) -> click.ClickException:
    """Suggest similar options for an unknown option; click also suggests dissimilar options."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    known = [name for option in error.ctx.command.params for name in option.opts if name[0] == "-"]
    hint = suggestion(error.option_name, known)
    return click.UsageError(f"No such option '{error.option_name}'.{hint}", error.ctx)


def _interrupted(abort: BaseException) -> str:
    """Return the message of an interrupt, with the notes that were added to the exception."""
    cause = abort.__cause__ or abort
    return " ".join(["interrupted.", *getattr(cause, "__notes__", [])])


def _complain(message: str) -> None:
    tell(f"sbert-search: {message}")
