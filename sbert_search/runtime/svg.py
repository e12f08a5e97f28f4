"""Panels with axes, as SVG: what every picture of this package is drawn with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 720, 70, 20  # pixels
COLOUR = "#1b6ca8"
COLOURS = (COLOUR, "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#4d4d4d", "#d16ba5", "#2a9d8f")


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high``, evenly or by their logarithms.

    Attributes:
        form: How a value is written, as in a format string.
    """

    low: float
    high: float
    log: bool = False
    form: str = ".4g"

    @classmethod
    def of(cls, values: Sequence[float], *, log: bool = False, form: str = ".4g") -> Axis:
        """Make an axis that holds all values."""
        low, high = min(values, default=1.0), max(values, default=2.0)
        if high <= low:
            low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
        return cls(low, high, log, form)

    def share(self, value: float) -> float:
        """Return how far along the axis a value lies, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return five values at equal distances."""
        shares = [i / 4 for i in range(5)]
        if self.log:
            return [self.low * (self.high / self.low) ** share for share in shares]
        return [self.low + (self.high - self.low) * share for share in shares]


@dataclass(frozen=True, slots=True)
class Panel:
    """A frame with a title, from ``top`` to ``bottom`` in pixels, and its two axes."""

    title: str
    x: Axis
    y: Axis
    top: float
    bottom: float

    def frame(self) -> str:
        """Draw the title, the grid and the numbers beside it."""
        parts = [
            f'<text x="{LEFT}" y="{self.top - 8}" font-weight="bold">{escape(self.title)}</text>\n'
        ]
        for x_value, y_value in zip(self.x.ticks(), self.y.ticks(), strict=True):
            x, y = self.place(x_value, y_value)
            parts.append(
                f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                f"{y_value:{self.y.form}}</text>"
                f'<text x="{x:.1f}" y="{self.bottom + 14}" text-anchor="middle">'
                f"{x_value:{self.x.form}}</text>\n"
            )
        return "".join(parts)

    def line(self, points: Sequence[tuple[float, float]], colour: str = COLOUR) -> str:
        """Join points by a line."""
        places = [f"{x:.1f} {y:.1f}" for x, y in (self.place(*point) for point in points)]
        if not places:
            return ""
        return f'<path d="M{"L".join(places)}" fill="none" stroke="{colour}"/>\n'

    def dot(self, point: tuple[float, float], colour: str, label: str) -> str:
        """Mark a point; the label shows when the pointer rests on it."""
        x, y = self.place(*point)
        title = f"<title>{escape(label)}</title>"
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">{title}</circle>\n'

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point lies, in pixels."""
        across, up = self.x.share(x), self.y.share(y)
        return (
            LEFT + (WIDTH - RIGHT - LEFT) * across,
            self.bottom - (self.bottom - self.top) * up,
        )


def legend(names: Sequence[str], top: float) -> str:
    """Name the colours, one a line."""
    return "".join(
        f'<circle cx="{LEFT + 8}" cy="{top + 16 * i - 4}" r="4" fill="{colour_of(i)}"/>'
        f'<text x="{LEFT + 18}" y="{top + 16 * i}">{escape(name)}</text>\n'
        for i, name in enumerate(names)
    )


def colour_of(number: int) -> str:
    """Return one of the colours, again from the first when they are used up."""
    return COLOURS[number % len(COLOURS)]


def document(body: str, height: float) -> str:
    """Make an SVG document of drawn parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}</svg>\n'
    )
