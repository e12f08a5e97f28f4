"""Reports of `eval/fine_tuning.py`: a table, what a paper reached beside it, and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sbert_search.runtime.svg import Axis, Panel, colour_of, document, legend

_TOP, _HEIGHT, _GAP, _LINE = 26, 190, 40, 16  # pixels: above a panel, of it, below it; of a name


def values_of(found: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the main figure of each seed in points."""
    return [100 * (each.get("spearman") or each["accuracy"]) for each in found]


def markdown(record: Mapping[str, Any]) -> str:
    """Show the means over seeds, with the standard deviation where there are several."""
    scores, tasks = record["scores"], record["tasks"]
    model = record["model"]
    lines = [f"# {record['question']}", ""]
    lines += [f"From {model['name']} (weights {model['weights_sha256'][:12]}).", ""]
    if "dev" in record:
        shown = "; ".join(f"{name} {100 * value:.2f}" for name, value in record["dev"].items())
        lines += [f"Chosen on dev (seed 0): {shown}. Taken: {record['chosen']}.", ""]
    published = record["published"]
    beside = " paper |" if published else ""
    lines += [f"| trial | seeds | {' | '.join(tasks)} |{beside}"]
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
    """Say of each published difference whether its sign shows here too, seed by seed.

    Args:
        scores: Of each trial, by seed, by task.
        task: Which one the paper reports.
        published: What the paper reached, in points.
        against: By trial, the one that it is compared with.
    """
    for name, reference in against.items():
        ours, theirs = (
            values_of([seed[task] for seed in scores[trial]]) for trial in (name, reference)
        )
        differences = [a - b for a, b in zip(ours, theirs, strict=False)]
        yield _sign(name, reference, published[name] - published[reference], differences)


def _sign(name: str, reference: str, paper: float, ours: Sequence[float]) -> str:
    said = f"{name}: the paper has it {_apart(paper)} {reference}"
    if not ours:
        return f"{said}; it was not measured here."
    agree = sum(difference * paper > 0 for difference in ours)
    verdict = {
        len(ours): "the sign reproduces",
        0: "the sign does not reproduce",
    }.get(agree, "the seeds disagree, so the sign is not shown")
    seeds = ", ".join(f"{difference:+.2f}" for difference in ours)
    return f"{said}; here it is {_apart(statistics.fmean(ours))} (by seed {seeds}): {verdict}."


def _apart(difference: float) -> str:
    return f"{abs(difference):.2f} {'above' if difference > 0 else 'below'}"


def draw(record: Mapping[str, Any]) -> str:
    """Draw every seed of every trial, a panel for each task, and a line through the means.

    Trials that are named "N %, kind" lie over N, a line for each kind; others side by side.
    """
    groups, tasks = _groups(record["scores"]), record["tasks"]
    bottom = len(tasks) * (_TOP + _HEIGHT + _GAP)
    panels = (
        _panel(task, record["scores"], groups, number * (_TOP + _HEIGHT + _GAP) + _TOP)
        for number, task in enumerate(tasks)
    )
    names = legend(list(groups), bottom)
    return document("".join(panels) + names, bottom + _LINE * len(groups))


Groups = Mapping[str, Sequence[tuple[float, str]]]  # by kind: place on the x axis, and trial


def _groups(trials: Iterable[str]) -> Groups:
    groups: dict[str, list[tuple[float, str]]] = {}
    for number, name in enumerate(trials, start=1):
        share, percent, kind = name.partition(" %, ")
        place = (float(share), name) if percent else (float(number), name)
        groups.setdefault(kind or f"{number}: {name}", []).append(place)
    return groups


def _axis(groups: Groups) -> Axis:
    """Shares by their logarithms; numbers of trials so that every tick is a whole one."""
    if all(len(places) == 1 for places in groups.values()):
        return Axis(1, max(6, len(groups)))
    return Axis.of([place for places in groups.values() for place, _ in places], log=True)


def _panel(task: str, scores: Mapping[str, Any], groups: Groups, top: float) -> str:
    found = {name: values_of([seed[task] for seed in seeds]) for name, seeds in scores.items()}
    y = Axis.of([value for values in found.values() for value in values])
    panel = Panel(f"{task}, points", _axis(groups), y, top, top + _HEIGHT)
    body = panel.frame()
    for number, places in enumerate(groups.values()):
        colour = colour_of(number)
        measured = [(x, name, found[name]) for x, name in places if found[name]]
        body += panel.line([(x, statistics.fmean(values)) for x, _, values in measured], colour)
        for x, name, values in measured:
            body += panel.line([(x, min(values)), (x, max(values))], colour)
            body += "".join(panel.dot((x, v), colour, f"{name}: {v:.2f}") for v in values)
    return body
