"""A progress bar in a terminal, with rate and time left."""

from __future__ import annotations

import contextlib
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
def bar(
    label: str,
    total: int | None,
    unit: str,
    about: Callable[[], str] = str,
    *,
    stdout_is_terminal: bool,
) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr until the context ends; yield a function that adds n finished units."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        _Rate(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[about]}"),
    )
    # With `redirect_stdout`, rich writes everything that is printed meanwhile to stderr, above the
    # bar. If stdout is a file or a pipe, this file or pipe would not get the output.
    progress = Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=stdout_is_terminal
    )
    with progress as shown:
        task = shown.add_task(label, total=total, about="")
        yield lambda n: shown.update(task, advance=n, about=about())
