"""The table of a comparison, over seeds, with intervals; as JSON, Markdown and SVG."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from sbert_search.base.machine import MadeWith
from sbert_search.base.svg import Axis, Panel, colour_of, document, legend
from sbert_search.config import to_mapping
from sbert_search.evaluate.metrics.significance import mean_interval
from sbert_search.evaluate.report import markdown_table
from sbert_search.lab.templates import write_files
from sbert_search.lab.variants.recipe import BUDGETS, Budget, Piece, Reading, Result, at_budget

Found = Callable[[Piece], Result | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure of a family at a budget."""

    values: dict[int, float]  # by seed
    mean: float  # over the seeds
    interval: tuple[float, float] | None  # 95 % interval of the mean; None for one seed
    # Mean difference from the first family, over the seeds that both families have; None for the
    # first family, and if there are no such seeds.
    difference: float | None
    # 95 % interval, not corrected for the number of figures; None for fewer than two seeds.
    difference_interval: tuple[float, float] | None

    @property
    def beyond_spread(self) -> bool:
        """Whether the interval of the difference leaves out 0."""
        ends = self.difference_interval
        return ends is not None and (ends[0] > 0 or ends[1] < 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantsReport:
    """The result of `analyze_variants`.

    Attributes:
        recipe: Settings of the comparison.
        seeds: Number of seeds.
        tables: Figures by budget (tokens or seconds), family and name.
        training: Figures of the pre-trainings by family and name: parameters, memory, speed.
        readings: The checkpoint that is measured, by budget, family and seed. Seeds with an
            unfinished pre-training are left out.
        curves: The checkpoints of each pre-training, by family and seed.
        missing: Names of the pieces that are not finished.
        cpus: Number of finished pieces, by the model of the CPU on which they ran.
        made: Version, commit, machine and libraries that made the report.
    """

    recipe: Mapping[str, object]
    seeds: int
    tables: Mapping[str, Mapping[str, Mapping[str, Figure]]]
    training: Mapping[str, Mapping[str, Figure]]
    readings: Mapping[str, Mapping[str, Mapping[int, Reading]]]
    curves: Mapping[str, Mapping[int, Sequence[Reading]]]
    missing: tuple[str, ...]
    cpus: Mapping[str, int]
    made: MadeWith

    def to_mapping(self) -> dict[str, object]:
        """Return all figures as JSON values."""
        return to_mapping(self)


def figure(values: Mapping[int, float], first: Mapping[int, float] | None) -> Figure:
    """Summarize the values of each seed; differences from the ``first`` family are seed by seed."""
    shared = [] if first is None else sorted(values.keys() & first.keys())
    gains = [values[seed] - first[seed] for seed in shared] if first else []
    return Figure(
        values=dict(values),
        mean=mean(values.values()),
        interval=mean_interval([*values.values()]) if len(values) > 1 else None,
        difference=mean(gains) if gains else None,
        difference_interval=mean_interval(gains) if len(gains) > 1 else None,
    )


def figures_of(
    families: Sequence[str], results: Mapping[str, Mapping[int, Mapping[str, float]]]
) -> dict[str, dict[str, Figure]]:
    """Summarize ``results``, by family, seed and name; differences are from the first family."""
    names = dict.fromkeys(
        name for family in families for own in results[family].values() for name in own
    )

    def values(family: str, name: str) -> dict[int, float]:
        return {seed: own[name] for seed, own in results[family].items() if name in own}

    return {
        family: {
            name: figure(found, None if family == families[0] else values(families[0], name))
            for name in names
            if (found := values(family, name))
        }
        for family in families
    }


def collect(
    recipe: Mapping[str, object],
    families: Sequence[str],
    pieces: Sequence[Piece],
    found: Found,
    seconds: float | None,
    made: MadeWith,
) -> VariantsReport:
    """Gather the results of all finished pieces; ``seconds`` is `VariantsRecipe.seconds`."""
    seeds = sorted({piece.seed for piece in pieces})
    trained = {
        family: {
            seed: result for seed in seeds if (result := found(Piece("pretrain", family, seed)))
        }
        for family in families
    }
    curves = {
        family: {seed: result["readings"] for seed, result in own.items()}
        for family, own in trained.items()
    }
    training = {
        family: {seed: result["figures"] for seed, result in own.items()}
        for family, own in trained.items()
    }
    measured: dict[Budget, dict[str, dict[int, dict[str, float]]]] = {
        budget: {family: {} for family in families} for budget in BUDGETS
    }
    for piece in pieces:
        if piece.budget and (result := found(piece)):
            own = measured[piece.budget][piece.family].setdefault(piece.seed, {})
            own |= result["figures"]
    whole = [seed for seed in seeds if all(seed in curves[family] for family in families)]
    return VariantsReport(
        recipe=recipe,
        seeds=len(seeds),
        tables={budget: figures_of(families, measured[budget]) for budget in BUDGETS},
        training=figures_of(families, training),
        readings={
            budget: {
                family: {
                    seed: at_budget({f: curves[f][seed] for f in families}, family, budget, seconds)
                    for seed in whole
                }
                for family in families
            }
            for budget in BUDGETS
        },
        curves=curves,
        missing=tuple(piece.name for piece in pieces if not found(piece)),
        cpus=Counter(
            result.get("cpu", "unknown CPU") for piece in pieces if (result := found(piece))
        ),
        made=made,
    )


TITLES = {
    "tokens": "At equal tokens",
    "seconds": "At equal seconds of processor time",
}
_ROW, _TOP, _GAP, _LEFT, _HEIGHT = 18, 30, 34, 110, 190  # pixels

Table = tuple[list[str], list[list[object]]]


def table_of(figures: Mapping[str, Mapping[str, Figure]]) -> Table:
    """Return the columns and rows of a table: a row for each figure, a column for each family."""
    rows: list[list[object]] = [
        [name, *(shown(own.get(name)) for own in figures.values())] for name in _names(figures)
    ]
    return ["figure", *figures], rows


def _names(figures: Mapping[str, Mapping[str, Figure]]) -> list[str]:
    return list(dict.fromkeys(name for own in figures.values() for name in own))


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
        lines += [f"## {TITLES[budget]}", "", *markdown_table(*table_of(figures)), ""]
        lines += [*markdown_table(*_readings(report, budget)), ""]
    lines += ["## Pre-training", "", *markdown_table(*table_of(report.training)), ""]
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


def draw_table(figures: Mapping[str, Mapping[str, Figure]], title: str) -> str:
    """Draw a panel for each figure, in which each family has a row: interval, and dot per seed."""
    body, top = f'<text x="{_LEFT}" y="16" font-weight="bold">{title}</text>\n', 26.0 + _TOP
    for name in _names(figures):
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
    contents = {
        "variants.json": json.dumps(report.to_mapping(), indent=1) + "\n",
        "variants.md": markdown(report),
        "curves.svg": draw_curves(report),
        **{f"{n}.svg": draw_table(own, TITLES[n]) for n, own in report.tables.items()},
    }
    return write_files(out, {name: text.encode() for name, text in contents.items()})
