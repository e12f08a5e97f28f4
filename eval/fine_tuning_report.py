"""Reports of `eval/fine_tuning.py`: a table of our values and published ones, and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sbert_search.base.svg import Axis, Panel, colour_of, document, legend

# Pixels above a panel, height of a panel, between panels, and height of a line of text.
_TOP, _HEIGHT, _GAP, _LINE = 26, 190, 56, 18
_NAMES = 150  # pixels: width of the names of trials


def values_of(found: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the main metric of each seed, times 100."""
    return [100 * each["spearman" if "spearman" in each else "accuracy"] for each in found]


def markdown(record: Mapping[str, Any]) -> str:
    """Write a table of the means over seeds, with the standard deviation of several seeds."""
    scores, tasks = record["scores"], record["tasks"]
    model = record["model"]
    lines = [f"# {record['question']}", ""]
    lines += [f"From {model['name']} (weights {model['weights_sha256'][:12]}).", ""]
    if "dev" in record:
        shown = "; ".join(f"{name} {100 * value:.2f}" for name, value in record["dev"].items())
        lines += [f"Chosen on dev (seed 0): {shown}. Taken: {record['chosen']}.", ""]
    published = record["published"]
    paper_column = " paper |" if published else ""
    lines += [f"| trial | seeds | {' | '.join(tasks)} |{paper_column}"]
    lines += ["|---" * (len(tasks) + 2 + bool(published)) + "|"]
    for name, seeds in scores.items():
        cells = [_cell([seed[task] for seed in seeds]) for task in tasks]
        paper = f" {published[name]:.2f} |" if name in published else " |" * bool(published)
        row = name.replace("|", r"\|")
        lines.append(f"| {row} | {len(seeds)} | {' | '.join(cells)} |{paper}")
    lines += ["", *(f"- {sentence}" for sentence in record["signs"])]
    if record["missing"]:
        lines += ["", f"Out of time, so missing: {'; '.join(record['missing'])}."]
    return "\n".join([*lines, ""]).replace("\n\n\n", "\n\n").rstrip() + "\n"


def _cell(found: Sequence[Mapping[str, float]]) -> str:
    if not found:
        return "missing"
    values = values_of(found)
    text = f"{statistics.fmean(values):.2f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2f}"
    if "unseen" in found[0]:
        text += f" (unseen pairs: {100 * statistics.fmean(each['unseen'] for each in found):.2f})"
    if "low" in found[0]:
        text += f" [{100 * found[0]['low']:.2f}, {100 * found[0]['high']:.2f}]"
    return text


def signs(
    scores: Mapping[str, Sequence[Mapping[str, Any]]],
    task: str,
    published: Mapping[str, float],
    against: Mapping[str, str],
) -> Iterator[str]:
    """State for each published difference of two trials whether ours has the same sign.

    Args:
        scores: Scores by trial, seed and task.
        task: Task that the paper reports.
        published: Published values by trial, times 100.
        against: For each trial, the trial that it is compared with.

    Yields:
        A sentence about each difference. Our sign counts only if it is equal for all seeds.
    """
    for name, reference in against.items():
        ours, theirs = (
            values_of([seed[task] for seed in scores[trial]]) for trial in (name, reference)
        )
        differences = [a - b for a, b in zip(ours, theirs, strict=False)]
        yield _sign(name, reference, published[name] - published[reference], differences)


def _sign(name: str, reference: str, paper: float, ours: Sequence[float]) -> str:
    said = f"{name!r}: the paper has it {_apart(paper)} {reference!r}"
    if not ours:
        return f"{said}; it was not measured here."
    agree = sum(difference * paper > 0 for difference in ours)
    verdict = {
        len(ours): "the sign reproduces",
        0: "the sign does not reproduce",
    }.get(agree, "the seeds disagree, so nothing can be said about the sign")
    seeds = ", ".join(f"{difference:+.2f}" for difference in ours)
    return f"{said}; here it is {_apart(statistics.fmean(ours))} (by seed {seeds}): {verdict}."


def _apart(difference: float) -> str:
    return f"{abs(difference):.2f} {'above' if difference > 0 else 'below'}"


def draw(record: Mapping[str, Any]) -> str:
    """Draw every seed of every trial, a panel for each task.

    If trials are named "N %, kind", the x-axis is N, and a line for each kind goes through the
    means over seeds. Otherwise each trial has a row of dots.
    """
    shares = _shares(record["scores"])
    height = _HEIGHT if shares else _LINE * len(record["scores"])
    body, top = "", float(_TOP)
    for task in record["tasks"]:
        found = {
            name: values_of([s[task] for s in seeds]) for name, seeds in record["scores"].items()
        }
        body += _curves(task, shares, found, top) if shares else _rows(task, found, top)
        top += height + _GAP
    body += legend(list(shares), top)
    return document(body, top - _TOP + _LINE * (1 + len(shares)))


Shares = Mapping[str, Sequence[tuple[float, str]]]  # by kind: percent and name of each trial
Found = Mapping[str, Sequence[float]]  # by trial: value of each seed


def _shares(trials: Iterable[str]) -> Shares:
    kinds: dict[str, list[tuple[float, str]]] = {}
    for name in trials:
        share, percent, kind = name.partition(" %, ")
        if percent:
            kinds.setdefault(kind, []).append((float(share), name))
    return kinds


def _curves(task: str, shares: Shares, found: Found, top: float) -> str:
    x = Axis.of([share for trials in shares.values() for share, _ in trials], log=True)
    y = Axis.of([value for values in found.values() for value in values])
    panel = Panel(
        f"{task}: score times 100, by percent of the training pairs", x, y, top, top + _HEIGHT
    )
    body = panel.frame()
    for number, trials in enumerate(shares.values()):
        colour = colour_of(number)
        measured = [(share, name, found[name]) for share, name in trials if found[name]]
        body += panel.line(
            [(share, statistics.fmean(values)) for share, _, values in measured], colour
        )
        for share, name, values in measured:
            body += "".join(panel.dot((share, v), colour, f"{name}: {v:.2f}") for v in values)
    return body


def _rows(task: str, found: Found, top: float) -> str:
    x = Axis.of([value for values in found.values() for value in values])
    y, bottom = Axis(0.5 - len(found), 0.5), top + _LINE * len(found)
    names = {float(-row): name for row, name in enumerate(found)}
    panel = Panel(f"{task}, points", x, y, top, bottom, names, left=_NAMES)
    body = panel.frame()
    for row, values in enumerate(found.values()):
        body += panel.line([(v, -row) for v in (min(values), max(values))] if values else [])
        body += "".join(panel.dot((v, -row), colour_of(0), f"{v:.2f}") for v in values)
    return body
