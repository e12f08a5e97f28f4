"""Progress of long steps, as a bar, lines or calls of a function; notes made safe to show."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from sbert_search.errors import in_python

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# The user and the password of a URL, also if a password has a slash or the scheme is missing.
_USER = re.compile(r"^([a-z][a-z0-9+.-]+:/+).*@|^[^/\\@]*:[^/\\]*@", re.IGNORECASE)


def visible(text: str) -> str:
    r"""Escape control characters and lone surrogates, except line feeds and tabs.

    A document or file name then cannot control the terminal.
    """
    return text if text.isprintable() else _HIDDEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def shown_url(url: str) -> str:
    """Return a URL or a path without user and password, for messages and files."""
    return _USER.sub(r"\1", url)


Advance = Callable[[int], None]

LOGGER = "sbert_search"  # name of the logger of notes and warnings
CALLBACK_S = 0.1  # shortest time in seconds between two calls of a callback for one step


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long step has come.

    ``str`` gives one line for people, such as
    ``Indexing: 4,096 of 10,000 docs (41%), 850 docs/s, 7 s left``.

    Attributes:
        name: Name of the step, such as "Indexing". The name may change between versions.
        done: Number of units done.
        total: Number of units of the step; None: unknown.
        unit: Plural name of the units, such as "docs".
        seconds: Seconds since the step began.
        finished: Whether the step has ended; a step that fails is never reported as finished.
        about: What else there is to say of the units done, such as "150 texts unchanged", or "".

    Example:
        >>> Progress("Embedding", done=40, total=100, unit="texts", seconds=2.0).done
        40
    """

    name: str
    done: int
    total: int | None
    unit: str
    seconds: float
    finished: bool = False
    about: str = ""

    def __str__(self) -> str:
        if self.finished:
            about = f", {self.about}" if self.about else ""
            return f"{self.name}: {self.done:,} {self.unit} in {duration(self.seconds)}{about}"
        parts = [f"{self.name}: {self.done:,} {self.unit}"]
        if self.total:
            share = self.done / self.total
            parts = [f"{self.name}: {self.done:,} of {self.total:,} {self.unit} ({share:.0%})"]
        if self.done and self.seconds:
            parts.append(f"{self.done / self.seconds:,.0f} {self.unit}/s")
            if self.total and self.total >= self.done:
                left_s = self.seconds * (self.total - self.done) / self.done
                parts.append(f"{duration(left_s)} left")
        parts += [self.about] if self.about else []
        return ", ".join(parts)


ProgressCallback: TypeAlias = Callable[[Progress], object]
ProgressDisplay: TypeAlias = ProgressCallback | Literal["auto", "off"]

_display: ProgressDisplay = "auto"
_quiet = False
_note_level: int | None = None  # lowest level of notes on stderr; None: notes go to `logging`

_DETAIL, _NOTE, _WARNING = 10, 20, 30  # DEBUG, INFO and WARNING of `logging`


def set_progress(display: ProgressDisplay) -> ProgressDisplay:
    """Choose how this process shows the progress of long steps.

    Args:
        display: "auto": a bar on stderr if that is a terminal, else lines. The first line comes
            after 2 seconds and the second 10 seconds later; each further interval is twice the one
            before, up to a minute. "off": nothing. Or a function, which is called with a `Progress`
            when a step begins, at most ten times a second while it runs, and when it has ended.
            Several threads may report one step, but only one at a time calls the function for this
            step. An exception in the function stops the work.

    Returns:
        The previous display, so that the caller can restore it.

    Example:
        >>> before = set_progress("off")
        >>> set_progress(before)
        'off'
    """
    global _display
    before, _display = _display, display
    return before


def set_quiet(quiet: bool) -> None:
    """Turn progress and notes of this process off or on; warnings are shown nevertheless."""
    global _quiet
    _quiet = quiet


class Reporting(NamedTuple):
    """The settings by which a process reports, and which it passes on to its child processes."""

    quiet: bool
    note_level: int | None  # lowest level of the notes on stderr; None: notes go to `logging`


SILENT = Reporting(quiet=True, note_level=100)  # shows not even warnings


def reporting() -> Reporting:
    """Return the settings by which this process reports, for a child process."""
    return Reporting(_quiet, _note_level)


def report_as(parent: Reporting) -> None:
    """Report from now on by the settings of the parent process."""
    global _quiet, _note_level
    _quiet, _note_level = parent


def show_notes(*, details: bool = False) -> None:
    """Write notes and warnings to stderr from now on, as commands do, and not to `logging`."""
    global _note_level
    _note_level = _DETAIL if details else _NOTE


def detail(message: str) -> None:
    """Report something that only a user who asks for details wants to read."""
    _report(_DETAIL, message)


def note(message: str) -> None:
    """Report something that a user of a command wants to read."""
    _report(_NOTE, message)


def warn(message: str) -> None:
    """Report something that may make a result worse than the user expects."""
    _report(_WARNING, message)


def _report(level: int, message: str) -> None:
    if _quiet and level < _WARNING:
        return
    if _note_level is None:
        import logging  # commands do without this import, so that they start sooner

        logging.getLogger(LOGGER).log(level, "%s", in_python(visible(message)))
    elif level >= _note_level:
        tell(message)


def tell(message: str) -> None:
    """Write a line to stderr, with control characters escaped."""
    if sys.stderr is not None:  # a background process may have none
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(visible(message) + "\n")
            sys.stderr.flush()


def tell_progress(message: str) -> None:
    """Write a progress line of a step that makes its own; nothing if a callback shows progress."""
    if _display == "auto" and not _quiet:
        tell(message)


@contextlib.contextmanager
def progress(
    label: str,
    total: int | None,
    unit: str = "docs",
    *,
    hidden: bool = False,
    own_lines: bool = False,
    about: Callable[[], str] = str,
) -> Iterator[Advance]:
    """Show the progress of a step; yield a function that adds n finished units.

    With ``own_lines``, the step writes its own lines by `tell_progress`, and only a callback is
    called. ``about`` says what else there is to show.
    """
    if hidden or _quiet or _display == "off" or (own_lines and _display == "auto"):
        yield lambda n: None
    elif callable(_display):
        with _counted(label, total, unit, about, _Often(_display)) as advance:
            yield advance
    elif sys.stderr and sys.stderr.isatty():
        from sbert_search.base.progress_bar import bar

        stdout_is_terminal = sys.stdout is not None and sys.stdout.isatty()
        with bar(label, total, unit, about, stdout_is_terminal=stdout_is_terminal) as advance:
            yield advance
    else:
        with _counted(label, total, unit, about, _Lines()) as advance:
            yield advance


class _Often:
    """Calls a callback when a step begins and ends, and in between at most every `CALLBACK_S`."""

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback, self._next_s = callback, 0.0

    def __call__(self, state: Progress) -> None:
        if state.finished or state.seconds >= self._next_s:
            self._next_s = state.seconds + CALLBACK_S
            self._callback(state)


class _Lines:
    """Writes a line to stderr after 2 seconds, then ever more rarely, and one at the end."""

    def __init__(self) -> None:
        self._next_s, self._wait_s = 2.0, 10.0

    def __call__(self, state: Progress) -> None:
        if state.finished:
            if state.seconds >= 2.0:
                tell(str(state))
        elif state.seconds >= self._next_s:
            self._next_s = state.seconds + self._wait_s
            self._wait_s = min(60.0, 2 * self._wait_s)
            tell(str(state))


@contextlib.contextmanager
def _counted(
    label: str,
    total: int | None,
    unit: str,
    about: Callable[[], str],
    show: Callable[[Progress], None],
) -> Iterator[Advance]:
    """Count the finished units of a step, which several threads may report, and show each state."""
    start, done, guard = time.perf_counter(), 0, threading.Lock()

    def state(*, finished: bool = False) -> Progress:
        seconds = time.perf_counter() - start
        return Progress(label, done, total, unit, seconds, finished, about())

    def advance(n: int) -> None:
        nonlocal done
        with guard:
            done += n
            show(state())

    advance(0)
    yield advance
    with guard:
        show(state(finished=True))


def duration(seconds: float) -> str:
    """Format a time for people: ``4.2 s``, ``1 min 05 s``, ``2 h 10 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
