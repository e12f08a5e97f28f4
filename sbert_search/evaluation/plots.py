"""Draw the record of an evaluation as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sbert_search.base.svg import COLOUR, Axis, Panel, document
from sbert_search.evaluation.manifest import EvaluationRecord

_TOP, _HEIGHT, _GAP = 26, 190, 50  # pixels above a panel, height of a panel, pixels below it
_BINS = 40
# A scatter plot of more pairs than this shows only every nth pair, since more dots would overlap.
_MOST_DOTS = 1500


def draw(record: EvaluationRecord) -> str:
    """Draw a record of an evaluation.

    For a correlation, the drawing is a scatter plot of predicted over gold scores, and a histogram
    of predicted scores. For another metric, it shows the value of every item in descending order.
    If the metric has no value for one item, such as F1, the drawing shows another metric: the first
    one of the record that has a value for each item.

    Args:
        record: A record as `manifest.read_evaluation` returns it.

    Returns:
        An SVG document.
    """
    name, metric = record["task"]["name"], record["task"]["main_metric"]
    if metric not in ("spearman", "pearson"):
        items = record["per_item"]
        shown = metric if metric in items else next(iter(items))
        return draw_sorted(f"{name}: {shown} of every item", items[shown].values())
    gold, predicted = (list(record["per_item"][side].values()) for side in ("gold", "predicted"))
    shown = f"{name}: predicted over gold score, Spearman {100 * record['scores']['spearman']:.2f}"
    parts = _scatter(shown, gold, predicted) + _histogram(f"{name}: predicted", predicted)
    return document(parts, 2 * (_TOP + _HEIGHT + _GAP))


def draw_sorted(title: str, values: Iterable[float]) -> str:
    """Draw values as a descending step line."""
    descending = sorted(map(float, values), reverse=True)
    panel = _panel(title, Axis(0, len(descending)), Axis.of([0.0, *descending]), 0)
    points = [(n + side, value) for n, value in enumerate(descending) for side in (0, 1)]
    return document(panel.frame() + panel.line(points), _TOP + _HEIGHT + _GAP)


def _scatter(title: str, gold: Sequence[float], predicted: Sequence[float]) -> str:
    panel = _panel(title, Axis.of(gold), Axis.of(predicted), 0)
    step = -(-len(gold) // _MOST_DOTS)
    dots = (panel.place(*point) for point in list(zip(gold, predicted, strict=True))[::step])
    body = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in dots)
    return panel.frame() + (
        f'<path d="{body}" stroke="{COLOUR}" stroke-width="4" stroke-linecap="round" '
        'stroke-opacity="0.35"/>\n'
    )


def _histogram(title: str, values: Sequence[float]) -> str:
    counts, edges = np.histogram(values, bins=_BINS)
    x, y = Axis(edges[0], edges[-1]), Axis(0, float(counts.max()))
    panel = _panel(title, x, y, 1)
    sides = zip(edges[:-1], edges[1:], counts, strict=True)
    points = [(edge, count) for low, high, count in sides for edge in (low, high)]
    return panel.frame() + panel.line([(edges[0], 0), *points, (edges[-1], 0)])


def _panel(title: str, x: Axis, y: Axis, number: int) -> Panel:
    top = _TOP + number * (_TOP + _HEIGHT + _GAP)
    return Panel(title, x, y, top, top + _HEIGHT)
