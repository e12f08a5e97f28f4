"""The report of `eval/task_heads.py`: tables, and the curve over the number of labelled rows."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import task_heads_trials as trials
from task_heads_trials import (
    ALL,
    CURVE_ROWS,
    CURVE_TASKS,
    FACTOR_ROWS,
    FACTORS,
    TASKS,
    Run,
)

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.svg import Axis, Panel, colour_of, document, legend

Results = Mapping[Run, dict[str, Any] | None]
_HEIGHT = 200  # pixels of a panel


def write_report(
    runs: Sequence[Run], results: Results, models: Mapping[str, str], out: Path
) -> None:
    """Write the report as JSON, Markdown and, if there is a curve, SVG."""
    out.mkdir(parents=True, exist_ok=True)
    done = [result for run in runs if (result := results.get(run))]
    record = {
        "models": {name: Path(model).name for name, model in models.items()},
        "runs": done,
        "missing": [run.name for run in runs if not results.get(run)],
        "core_minutes": sum(result["core_seconds"] for result in done) / 60,
        **made_with(),
    }
    contents = {"json": json.dumps(record, indent=1) + "\n", "md": markdown(results, record)}
    if any(results.get(Run(task, "base", "full", 100, 0)) for task in CURVE_TASKS):
        contents["svg"] = draw(results)
    for ending, text in contents.items():
        replace_file(out / f"task-heads.{ending}", text.encode())


def values(results: Results, run: Run, metric: str = "") -> list[float]:
    """Return a test metric of a run, times 100, of each seed that is done; "": that of the task."""
    metric = metric or TASKS[run.task].metric
    found = (results.get(replace(run, seed=seed)) for seed in range(trials.SEEDS))
    return [100 * result["test"][metric] for result in found if result]


def shown(numbers: Sequence[float]) -> str:
    """Show mean and standard deviation; the number of seeds if some are missing."""
    if not numbers:
        return "-"
    spread = f" ± {statistics.stdev(numbers):.1f}" if len(numbers) > 1 else ""
    few = f" ({len(numbers)} seed{'s' * (len(numbers) > 1)})" if len(numbers) < trials.SEEDS else ""
    return f"{statistics.mean(numbers):.1f}{spread}{few}"


def markdown(results: Results, record: Mapping[str, Any]) -> str:
    """Write the tables."""
    base, own = (record["models"].get(name, name) for name in ("base", "own"))
    lines = [
        "# Task heads",
        "",
        "Full tuning on the first token. Test metric times 100, mean and standard deviation of "
        f"{trials.SEEDS} seeds.",
        "",
        f"| task | metric | {base} | {own} | MiniLM-L6-H384 | |",
        "|---|---|---|---|---|---|",
        *_rows_of_tasks(results),
        "",
        "Expected calibration error on test data, times 100, before and after the temperature was "
        "fitted on dev data:",
        "",
        f"| task | {base} before | after | {own} before | after |",
        "|---|---|---|---|---|",
        *_rows_of_calibration(results),
        "",
        "Each other factor alone, on the same encoder, with seed 0:",
        "",
        f"| factor | SST-2, {FACTOR_ROWS:,} rows | RTE |",
        "|---|---|---|",
        *_rows_of_factors(results),
        "",
        "Few labelled rows, from pre-trained weights and from random weights of the same shape:",
        "",
        f"| rows | {' | '.join(f'{task} | {task}, random' for task in CURVE_TASKS)} |",
        "|---|---|---|---|---|",
        *_rows_of_curve(results),
        "",
        f"{_runs_by_precision(record['runs'])}; {record['core_minutes']:.0f} minutes of one core.",
    ]
    if record["missing"]:
        lines += ["", f"Missing: {', '.join(record['missing'])}."]
    return "\n".join(lines) + "\n"


def _runs_by_precision(runs: Sequence[Mapping[str, Any]]) -> str:
    last = ([each for each in run["settings"] if each.startswith("precision=")][-1] for run in runs)
    counts = Counter(setting.removeprefix("precision=") for setting in last)
    return ", ".join(f"{count} runs in {precision}" for precision, count in counts.items())


def _rows_of_tasks(results: Results) -> Iterable[str]:
    for name, task in TASKS.items():
        for metric in (task.metric, "exact_match") if task.kind == "qa" else (task.metric,):
            cells = (
                shown(values(results, Run(name, m, "full", ALL, 0), metric))
                for m in ("base", "own")
            )
            published = "-" if task.published is None else f"{task.published:.1f}"
            yield f"| {name} | {metric} | {' | '.join(cells)} | {published} | {task.note} |"


def _rows_of_calibration(results: Results) -> Iterable[str]:
    for name in (name for name, task in TASKS.items() if task.kind == "classify"):
        cells = [
            shown(values(results, Run(name, model, "full", ALL, 0), metric))
            for model in ("base", "own")
            for metric in ("ece_before", "ece")
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def _rows_of_factors(results: Results) -> Iterable[str]:
    for variant in ("full", *FACTORS):
        cells = [
            f"{100 * result['test'][TASKS[task].metric]:.1f}" if result else "-"
            for task, rows in (("SST-2", FACTOR_ROWS), ("RTE", ALL))
            for result in [results.get(Run(task, "base", variant, rows, 0))]
        ]
        yield f"| {variant} | {' | '.join(cells)} |"


def _rows_of_curve(results: Results) -> Iterable[str]:
    for rows in CURVE_ROWS:
        cells = [
            shown(values(results, Run(task, "base", variant, rows, 0)))
            for task in CURVE_TASKS
            for variant in ("full", "random weights")
        ]
        yield f"| {rows or 'all'} | {' | '.join(cells)} |"


def draw(results: Results) -> str:
    """Draw the test metric over the number of labelled rows, one panel for each task."""
    totals = {"MRPC": 3_576, "SST-2": 60_614}  # training rows of the right end
    body, variants = "", ("full", "random weights")
    for number, (task, total) in enumerate(totals.items()):
        points = {
            variant: [
                (float(rows or total), statistics.mean(found))
                for rows in CURVE_ROWS
                if (found := values(results, Run(task, "base", variant, rows, 0)))
            ]
            for variant in variants
        }
        every = [point for line in points.values() for point in line]
        top = 40 + number * (_HEIGHT + 60)
        panel = Panel(
            f"{task}: {TASKS[task].metric} on test, times 100, by labelled rows",
            Axis.of([x for x, _ in every], log=True),
            Axis.of([y for _, y in every]),
            top,
            top + _HEIGHT,
        )
        body += panel.frame()
        for index, (variant, line) in enumerate(points.items()):
            body += panel.line(line, colour_of(index))
            body += "".join(
                panel.dot(point, colour_of(index), f"{variant}, {point[0]:g} rows: {point[1]:.1f}")
                for point in line
            )
    bottom = 40 + 2 * (_HEIGHT + 60)
    return document(body + legend(["pre-trained", "random weights"], bottom), bottom + 40)
