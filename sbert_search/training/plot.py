"""The curves of a run as SVG, from its log alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, PANEL, LEFT, RIGHT, TOP = 720, 190, 70, 20, 26  # pixels
COLOUR = "#1b6ca8"
MOST_POINTS = 600  # of one curve; more are thinned, since no screen shows them

Points = list[tuple[float, float]]


def draw_curves(log: Sequence[Mapping[str, Any]]) -> str:
    """Draw the loss, the dev figures and the learning rate over the steps, a panel each.

    Args:
        log: The lines of ``log.jsonl``.

    Returns:
        An SVG document.
    """
    steps = [line for line in log if line["kind"] == "step"]
    dev = [line for line in log if line["kind"] == "dev"]
    panels = {"loss": [(line["step"], line["loss"]) for line in steps]}
    for name in sorted({name for line in dev for name in line["figures"]}):
        panels[f"dev {name}"] = [(line["step"], line["figures"][name]) for line in dev]
    panels["learning rate"] = [(line["step"], line["lr"]) for line in steps]
    span = _span([line["step"] for line in steps])
    body = [_panel(i, title, panels[title], span) for i, title in enumerate(panels)]
    height = PANEL * len(panels) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{"".join(body)}</svg>\n'
    )


def _panel(number: int, title: str, points: Points, x_span: tuple[float, float]) -> str:
    top, bottom, right = PANEL * number + TOP, PANEL * (number + 1) - 20, WIDTH - RIGHT
    y_span = _span([y for _, y in points])
    parts = [f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{escape(title)}</text>\n']
    for i in range(5):
        x, y = LEFT + (right - LEFT) * i / 4, bottom - (bottom - top) * i / 4
        step, value = (low + (high - low) * i / 4 for low, high in (x_span, y_span))
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
            f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{step:,.0f}</text>\n'
        )
    places = [
        f"{_place(x, x_span, LEFT, right):.1f} {_place(y, y_span, bottom, top):.1f}"
        for x, y in _thinned(points)
    ]
    if places:
        parts.append(f'<path d="M{"L".join(places)}" fill="none" stroke="{COLOUR}"/>\n')
    return "".join(parts)


def _thinned(points: Points) -> Points:
    """Average neighbours until few enough points are left."""
    size = -(-len(points) // MOST_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)] if points else []
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _place(value: float, span: tuple[float, float], start: float, end: float) -> float:
    return start + (end - start) * (value - span[0]) / (span[1] - span[0])
