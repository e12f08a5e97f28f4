"""The training curves of a run as SVG, drawn from its log."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sbert_search.base.svg import Axis, Panel, document
from sbert_search.training.loop.log import LogLine

PANEL, TOP = 190, 26  # pixels: height of a panel, and of its title
MOST_POINTS = 600  # largest number of points of a curve, about what a screen can show

Points = list[tuple[float, float]]


def draw_curves(log: Sequence[LogLine]) -> str:
    """Draw loss, dev metrics and learning rate over the steps, one panel each.

    Args:
        log: The lines of ``log.jsonl``.

    Returns:
        An SVG document without the values that are not finite.
    """
    steps = [line for line in log if line["kind"] == "step"]
    dev = [line for line in log if line["kind"] == "dev"]
    panels: dict[str, Points] = {"loss": [(line["step"], line["loss"]) for line in steps]}
    for name in sorted({name for line in dev for name in line["figures"]}):
        panels[f"dev {name}"] = [
            (line["step"], line["figures"][name]) for line in dev if name in line["figures"]
        ]
    panels["learning rate"] = [(line["step"], line["lr"]) for line in steps]
    x = Axis.of([line["step"] for line in steps])
    body = [_panel(i, title, panels[title], x) for i, title in enumerate(panels)]
    return document("".join(body), PANEL * len(panels) + 10)


def _panel(number: int, title: str, points: Points, x: Axis) -> str:
    points = [(at, value) for at, value in points if math.isfinite(value)]
    y = Axis.of([value for _, value in points])
    panel = Panel(title, x, y, PANEL * number + TOP, PANEL * (number + 1) - 20)
    return panel.frame() + panel.line(_thinned(points))


def _thinned(points: Points) -> Points:
    """Average groups of neighbouring points, so that at most `MOST_POINTS` are left."""
    size = -(-len(points) // MOST_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)] if points else []
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]
