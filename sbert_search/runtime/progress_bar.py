"""A progress bar in a terminal, with rate and time left."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

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


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        rate = f"{speed:,.0f} {self._unit}/s" if speed else f"- {self._unit}/s"
        known = f"{task.total:,.0f}" if task.total is not None else "?"
        return Text(f"{task.completed:,.0f}/{known} {rate}")


@contextlib.contextmanager
def bar(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr until the context ends; yield a function that adds n finished units."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        _Rate(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # rich writes what is printed meanwhile above the bar, to stderr. What goes to a file or a pipe
    # must not be taken from there.
    above = sys.stdout is not None and sys.stdout.isatty()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=above) as shown:
        task = shown.add_task(label, total=total)
        yield lambda n: shown.advance(task, n)
