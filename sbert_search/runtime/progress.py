"""Progress bars and notes on stderr; bars are shown only if stderr is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from sbert_search.runtime.visible import visible

Advance = Callable[[int], None]

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Turn progress bars and notes of this process off or on."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether progress bars and notes are off."""
    return _quiet


def note(message: str) -> None:
    """Write a message to stderr, unless notes are off."""
    if not _quiet:
        tell(message)


def tell(message: str) -> None:
    """Write a line to stderr, with control characters escaped.

    Errors of stderr are ignored, since they should not stop the work. A background process may have
    no stderr at all; then nothing is written.
    """
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(visible(message) + "\n")
            sys.stderr.flush()


@contextlib.contextmanager
def progress(
    label: str, total: int | None, unit: str = "docs", *, hidden: bool = False
) -> Iterator[Advance]:
    """Show a progress bar with rate and time left; yield a function that adds n finished units.

    Args:
        label: Name of the work, such as "Embedding".
        total: Number of units, or None if unknown.
        unit: Plural name of the units.
        hidden: Whether to show no bar.
    """
    if hidden or _quiet or not (sys.stderr and sys.stderr.isatty()):
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            rate = f"{speed:,.0f} {unit}/s" if speed else f"- {unit}/s"
            known = f"{task.total:,.0f}" if task.total is not None else "?"
            return Text(f"{task.completed:,.0f}/{known} {rate}")

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda n: bar.advance(task, n)
