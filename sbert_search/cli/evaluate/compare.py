"""`eval compare`: two runs side by side, with what may be said of their difference."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.shared_options import shared_options
from sbert_search.runtime.progress import note

if TYPE_CHECKING:
    from sbert_search.evaluation.compare import Comparison

_SHOWN = 5  # of the greatest gains and losses
MAX_DRAWS = 1_000_000  # more would take minutes and move no interval
_RUN = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("run_a", type=_RUN)
@click.argument("run_b", type=_RUN)
@click.option("--metric", "metrics", multiple=True, help="Several times; default: the main one.")
@click.option("--draws", type=click.IntRange(100, MAX_DRAWS), default=10_000, show_default=True)
@click.option(
    "--svg", type=click.Path(file_okay=False, path_type=Path), help="Draw gains into this folder."
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
    """Compare RUN_A with RUN_B: records that --out wrote, or folders of them.

    Bootstrap intervals and randomisation tests over the queries (of STS: the pairs), p-values
    corrected by Holm for all tasks and metrics compared at once.
    """
    from sbert_search.evaluation.compare import compare_runs
    from sbert_search.runtime.disk.same_file import require_apart

    found, unlike = compare_runs(run_a, run_b, metrics=metrics, draws=draws, seed=seed)
    if svg:
        pictures = {_picture(comparison, svg): comparison for comparison in found}
        records = [file for run in (run_a, run_b) for file in _records(run)]
        for path in pictures:
            require_apart(path, records, "--svg")
        for path, comparison in pictures.items():
            _draw(comparison, path)
    if as_json:
        for comparison in found:
            emit(_record(comparison, unlike))
        return
    for name, (a, b) in unlike.items():
        say(f"{name}: {a} (A), {b} (B)")
    columns = ["task", "metric", "A", "B", "B - A", "95 % interval", "p (Holm)"]
    show_table(columns, map(_row, found))
    for comparison in found:
        _show_changes(comparison)


def _picture(found: Comparison, folder: Path) -> Path:
    return folder / f"{found.task}-{found.metric.replace('@', '-')}.svg"


def _records(run: Path) -> list[Path]:
    return sorted(run.glob("*.json")) if run.is_dir() else [run]


def _draw(found: Comparison, path: Path) -> None:
    from sbert_search.evaluation.plots import draw_sorted
    from sbert_search.runtime.disk.files import replace_file

    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{found.task} {found.metric}: gain of B over A on every item"
    picture = draw_sorted(title, [change.gain for change in found.changes])
    replace_file(path, picture.encode())
    note(f"wrote {path}")


def _row(found: Comparison) -> list[object]:
    interval = f"{found.difference.low:+.4f} to {found.difference.high:+.4f}"
    return [
        *(found.task, found.metric, found.first, found.second),
        *(f"{found.difference.value:+.4f}", interval, f"{found.corrected:.4f}"),
    ]


def _verdict(found: Comparison) -> str:
    return found.verdict.replace("second", "B")


def _show_changes(found: Comparison) -> None:
    """Say what follows, and name the items that changed most."""
    say(f"{found.task} {found.metric}: {_verdict(found)}.")
    for title, changes in (("better", found.wins), ("worse", found.losses)):
        shown = [f"{c.item} ({c.first:.3f}, {c.second:.3f})" for c in changes[:_SHOWN]]
        most = f", most: {', '.join(shown)}" if shown else ""
        say(f"  B is {title} on {len(changes)} of {len(found.changes)}{most}")


def _record(found: Comparison, unlike: dict[str, tuple[object, object]]) -> dict[str, Any]:
    return {
        **{"task": found.task, "metric": found.metric, "a": found.first, "b": found.second},
        "difference": found.difference.value,
        "interval": [found.difference.low, found.difference.high],
        "p": found.difference.p_value,
        "p_holm": found.corrected,
        "verdict": _verdict(found),
        "differs": unlike,
        **{"wins": len(found.wins), "losses": len(found.losses)},
        "items": [asdict(change) for change in found.changes],
    }
