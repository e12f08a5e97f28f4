"""`eval compare`: compare the scores of two runs and test the difference for significance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import shared_options

if TYPE_CHECKING:
    from sbert_search.evaluate.compare import Comparison

_SHOWN = 5  # number of gains, of losses and of the entries of a list to print
MAX_DRAWS = 1_000_000  # more draws take minutes and hardly change an interval
_RUN = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("run_a", type=_RUN)
@click.argument("run_b", type=_RUN)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="Metric to compare; may be repeated.  [default: the main metric of each task]",
)
@click.option(
    "--draws",
    type=click.IntRange(100, MAX_DRAWS),
    default=10_000,
    show_default=True,
    help="Number of random draws of each bootstrap and each randomisation test.",
)
@click.option(
    "--svg",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for plots of the gain of each query.",
)
@shared_options("seed", "quiet", "json")
def compare(
    run_a: Path,
    run_b: Path,
    metrics: tuple[str, ...],
    draws: int,
    svg: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Compare two evaluation runs.

    RUN_A and RUN_B are JSON files that --out of another `eval` command wrote, or folders of such
    files. Intervals come from a bootstrap and p-values from a randomisation test, both over the
    queries (for STS, over the pairs). Holm's method corrects the p-values for the number of tasks
    and metrics that are compared.
    """
    from sbert_search.base.folders import require_apart
    from sbert_search.evaluate.compare import compare_runs

    comparisons = compare_runs(run_a, run_b, metrics=metrics, draws=draws, seed=seed)
    if svg:
        plots = {_plot_path(comparison, svg): comparison for comparison in comparisons}
        records = [file for run in (run_a, run_b) for file in _records(run)]
        for path in plots:
            require_apart(path, records, "--svg")
        for path, comparison in plots.items():
            _draw(comparison, path)
    if as_json:
        for comparison in comparisons:
            emit(_record(comparison))
        return
    _show_settings(comparisons)
    columns = ["task", "metric", "A", "B", "B - A", "95 % interval", "p (Holm)"]
    show_table(columns, map(_row, comparisons))
    for comparison in comparisons:
        _show_changes(comparison)


def _plot_path(comparison: Comparison, folder: Path) -> Path:
    return folder / f"{comparison.task}-{comparison.metric.replace('@', '-')}.svg"


def _records(run: Path) -> list[Path]:
    return sorted(run.glob("*.json")) if run.is_dir() else [run]


def _draw(comparison: Comparison, path: Path) -> None:
    from sbert_search.base.files import replace_file
    from sbert_search.evaluate.report import draw_sorted

    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{comparison.task} {comparison.metric}: gain of B over A on every item"
    svg = draw_sorted(title, [change.gain for change in comparison.changes])
    replace_file(path, svg.encode())
    note(f"wrote {path}")


def _row(comparison: Comparison) -> list[object]:
    difference = comparison.difference
    interval = f"{difference.low:+.4f} to {difference.high:+.4f}"
    return [
        *(comparison.task, comparison.metric, comparison.first, comparison.second),
        *(f"{difference.value:+.4f}", interval, f"{comparison.corrected:.4f}"),
    ]


def _verdict(comparison: Comparison) -> str:
    return comparison.verdict.replace("second", "B")


def _show_settings(comparisons: Sequence[Comparison]) -> None:
    """Print settings that differ between the runs; name the tasks if only some differ."""
    tasks = {comparison.task: comparison.differs for comparison in comparisons}
    lines: dict[str, list[str]] = defaultdict(list)
    for task, differs in tasks.items():
        for name, (a, b) in differs.items():
            lines[f"{name}: {_shortened(a)} (A), {_shortened(b)} (B)"].append(task)
    for line, where in lines.items():
        say(line if len(where) == len(tasks) else f"{line} in {', '.join(where)}")


def _shortened(value: object) -> object:
    """Return a setting; a long list, such as the stop words, is shortened."""
    if isinstance(value, list) and len(value) > _SHOWN:
        return f"[{', '.join(map(repr, value[:_SHOWN]))} and {len(value) - _SHOWN} more]"
    return value


def _show_changes(comparison: Comparison) -> None:
    """Print the verdict and the items with the largest gains and losses."""
    say(f"{comparison.task} {comparison.metric}: {_verdict(comparison)}.")
    for title, changes in (("better", comparison.wins), ("worse", comparison.losses)):
        shown = [f"{c.item} ({c.first:.3f}, {c.second:.3f})" for c in changes[:_SHOWN]]
        most = f", most: {', '.join(shown)}" if shown else ""
        say(f"  B is {title} on {len(changes)} of {len(comparison.changes)}{most}")


def _record(comparison: Comparison) -> dict[str, object]:
    difference = comparison.difference
    return {
        **{"task": comparison.task, "metric": comparison.metric},
        **{"a": comparison.first, "b": comparison.second},
        "difference": difference.value,
        "interval": [difference.low, difference.high],
        "p": difference.p_value,
        "p_holm": comparison.corrected,
        "verdict": _verdict(comparison),
        "differs": comparison.differs,
        **{"wins": len(comparison.wins), "losses": len(comparison.losses)},
        "items": [asdict(change) for change in comparison.changes],
    }
