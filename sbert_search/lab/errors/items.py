"""The result of the analysis of a run: metric and features of each item, and the worst items."""

from __future__ import annotations

from dataclasses import dataclass

from sbert_search.lab.errors.record import ErrorItem


@dataclass(frozen=True, slots=True)
class Analysed:
    """The analysed items of a run.

    Attributes:
        values: Metric of each item.
        features: Features of each item.
        worst: The worst items, the worst first.
        left_out: Number of items that were not analysed.
    """

    values: list[float]
    features: list[dict[str, float | None]]
    worst: list[ErrorItem]
    left_out: int = 0
