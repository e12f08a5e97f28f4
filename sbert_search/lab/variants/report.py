"""Write a comparison as JSON, Markdown and SVG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from sbert_search.base.files import replace_file
from sbert_search.base.svg import Axis, Panel, colour_of, document, legend
from sbert_search.lab.variants.table import Figure, VariantsReport

TITLES = {
    "tokens": "At equal tokens",
    "seconds": "At equal seconds of processor time",
}
_ROW, _TOP, _GAP, _LEFT, _HEIGHT = 18, 30, 34, 110, 190  # pixels

Table = tuple[list[str], list[list[object]]]


def table_of(figures: Mapping[str, Mapping[str, Figure]]) -> Table:
    """Return the columns and rows of a table: a row for each figure, a column for each family."""
    names = list(dict.fromkeys(name for own in figures.values() for name in own))
    rows: list[list[object]] = [
        [name, *(shown(figures[family].get(name)) for family in figures)] for name in names
    ]
    return ["figure", *figures], rows


def shown(figure: Figure | None) -> str:
    """Format mean and interval, and a star if `Figure.beyond_spread`; "-" stands for None."""
    if figure is None:
        return "-"
    star = " *" if figure.beyond_spread else ""
    ends = figure.interval
    interval = f" [{number(ends[0])}, {number(ends[1])}]" if ends else ""
    return f"{number(figure.mean)}{interval}{star}"


def number(value: float) -> str:
    """Format a number with four decimals, or without decimals from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}"


def markdown(report: VariantsReport) -> str:
    """Return the report as Markdown."""
    recipe = report.recipe
    finished = "those finished of " if report.missing else ""
    lines = [
        f"# Variants of size {recipe['size']} with {recipe['tokens']:,} tokens each",
        "",
        f"Mean over {finished}{report.seeds} seeds, with 95 % intervals of the mean (Student, "
        "bootstrap). A star marks a figure whose difference from "
        f"{next(iter(report.tables['tokens']))}, seed by seed, has an interval without 0; the "
        "intervals are not corrected for the number of figures. DistilBERT also had the "
        "pre-training of its teacher, which counts in no budget.",
        "",
    ]
    for budget, figures in report.tables.items():
        lines += [f"## {TITLES[budget]}", "", *_markdown(table_of(figures)), ""]
        lines += [*_markdown(_readings(report, budget)), ""]
    lines += ["## Pre-training", "", *_markdown(table_of(report.training)), ""]
    if report.missing:
        lines += [f"Not finished: {', '.join(report.missing)}.", ""]
    cpus = [f"{number_of} on {cpu}" for cpu, number_of in report.cpus.items()]
    lines += [
        f"Pieces of work: {', '.join(cpus) or 'none'}. Report by version {report.made['version']}, "
        f"commit {report.made['commit']}.",
        "",
    ]
    return "\n".join(lines)


def _readings(report: VariantsReport, budget: str) -> Table:
    """Return a table of the tokens and seconds of measured checkpoints, as means over the seeds."""
    rows: list[list[object]] = []
    for family, own in report.readings[budget].items():
        if own:
            tokens = sum(each["tokens"] for each in own.values()) / len(own)
            seconds = sum(each["processor_seconds"] for each in own.values()) / len(own)
            rows.append([family, f"{tokens:,.0f}", f"{seconds:,.1f}"])
    return ["read at", "tokens", "seconds of processor time"], rows


def _markdown(table: Table) -> list[str]:
    columns, rows = table
    rule = ["---"] + ["--:"] * (len(columns) - 1)
    lines: list[Sequence[object]] = [columns, rule, *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def draw_table(figures: Mapping[str, Mapping[str, Figure]], title: str) -> str:
    """Draw a panel for each figure, in which each family has a row: interval, and dot per seed."""
    names = list(dict.fromkeys(name for own in figures.values() for name in own))
    body, top = f'<text x="{_LEFT}" y="16" font-weight="bold">{title}</text>\n', 26.0 + _TOP
    for name in names:
        families = [family for family in figures if name in figures[family]]
        rows = dict(enumerate(reversed(families)))
        of = {family: figures[family][name] for family in families}
        values = [
            v for each in of.values() for v in (*each.values.values(), *(each.interval or ()))
        ]
        y_axis = Axis(-0.5, len(rows) - 0.5)
        bottom = top + _ROW * len(rows)
        labels = {float(at): family for at, family in rows.items()}
        panel = Panel(name, Axis.of(values), y_axis, top, bottom, labels, _LEFT)
        body += panel.frame()
        for at, family in rows.items():
            each, colour = of[family], colour_of(list(figures).index(family))
            if each.interval:
                body += panel.line([(end, float(at)) for end in each.interval], colour)
            for seed, value in each.values.items():
                body += panel.dot((value, float(at)), colour, f"seed {seed}: {number(value)}")
        top = bottom + _GAP + _TOP
    return document(body, top)


def draw_curves(report: VariantsReport) -> str:
    """Draw the MLM loss on held-out text over the tokens trained on, a line for each run."""
    lines: list[tuple[int, Sequence[tuple[float, float]]]] = []
    for number_of, runs in enumerate(report.curves.values()):
        for readings in runs.values():
            points = [
                (each["tokens"] / 1e6, each["figures"]["mlm"])
                for each in readings
                if "mlm" in each["figures"]
            ]
            lines.append((number_of, points))
    points = [point for _, line in lines for point in line]
    title = "MLM loss on held-out text over millions of tokens; for ELECTRA, that of the generator"
    x, y = Axis.of([0.0, *(x for x, _ in points)]), Axis.of([y for _, y in points])
    panel = Panel(title, x, y, _TOP, _TOP + _HEIGHT)
    body = panel.frame() + "".join(panel.line(line, colour_of(at)) for at, line in lines)
    end = _TOP + _HEIGHT + 34
    return document(body + legend(list(report.curves), end), end + 16 * len(report.curves) + 10)


def write_variants(report: VariantsReport, out: str | Path) -> list[Path]:
    """Write ``variants.json``, ``variants.md``, and SVGs of tables and curves; return the paths."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "variants.json": json.dumps(report.to_mapping(), indent=1) + "\n",
        "variants.md": markdown(report),
        "curves.svg": draw_curves(report),
        **{f"{n}.svg": draw_table(own, TITLES[n]) for n, own in report.tables.items()},
    }
    for name, text in contents.items():
        replace_file(folder / name, text.encode())
    return [folder / name for name in contents]
