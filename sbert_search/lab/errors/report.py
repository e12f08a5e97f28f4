"""Write the analysis of errors as JSON, SVG and an HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sbert_search.base.files import replace_file
from sbert_search.base.svg import COLOUR, COLOURS, Axis, Panel, document
from sbert_search.errors import ConfigError
from sbert_search.lab.errors.page import make_page
from sbert_search.lab.errors.record import ErrorReport

# Pixels: height of a row; space above, below and to the left of the rows.
_ROW, _TOP, _BELOW, _LEFT = 20, 40, 40, 330


def require_other_folder(run: str | Path, out: str | Path) -> None:
    """Refuse to write the analysis into the folder of the run.

    In that folder, ``eval compare`` would read the JSON files of the analysis as records.

    Raises:
        ConfigError: ``out`` is the folder of the run, or a file.
    """
    path, out = Path(run), Path(out)
    folder = path if path.is_dir() else path.parent
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out: {out} is a file; name a folder.")
    if out.resolve() == folder.resolve():
        raise ConfigError(
            f"--out: {out} holds the records of the run, and eval compare reads every JSON file in "
            "it; name another folder."
        )


def write_errors(reports: Sequence[ErrorReport], out: str | Path) -> list[Path]:
    """Write ``errors-TASK.json``, ``.svg`` and ``.html`` for each task; return their paths."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for report in reports:
        contents = {
            "json": json.dumps(report.to_mapping(), indent=1, ensure_ascii=False) + "\n",
            "svg": draw(report),
            "html": make_page(report),
        }
        for ending, text in contents.items():
            written.append(folder / f"errors-{report.task}.{ending}")
            replace_file(written[-1], text.encode("utf-8", "surrogatepass"))
    return written


def draw(report: ErrorReport) -> str:
    """Draw mean and interval of each slice, and the mean of all items as a vertical line."""
    rows = list(enumerate(reversed(report.slices)))
    ends = [end for _, each in rows for end in each.interval or (each.mean,)]
    names = {float(at): f"{each.feature}: {each.range} ({each.items:,})" for at, each in rows}
    bottom = _TOP + _ROW * max(len(rows), 1)
    title = f"{report.task}: {report.metric} by slice, with 95 % intervals"
    y_axis = Axis(-0.5, len(rows) - 0.5)
    panel = Panel(title, Axis.of([*ends, report.mean]), y_axis, _TOP, bottom, names, _LEFT)
    drawn = panel.frame() + panel.line(
        [(report.mean, -0.5), (report.mean, len(rows) - 0.5)], "#999"
    )
    for at, each in rows:
        colour = COLOURS[1] if each.worse else COLOUR
        label = f"{each.mean:.4f}"
        if each.interval:
            drawn += panel.line([(end, float(at)) for end in each.interval], colour)
            label += ", {:.4f} to {:.4f}".format(*each.interval)
        drawn += panel.dot((each.mean, float(at)), colour, label)
    return document(drawn, bottom + _BELOW)
