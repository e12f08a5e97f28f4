"""Draw charts as SVG: panels with axes, lines and dots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, LEFT, RIGHT = 720, 70, 20  # pixels
COLOUR = "#1b6ca8"
COLOURS = (COLOUR, "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#4d4d4d", "#d16ba5", "#2a9d8f")


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis from ``low`` to ``high``, or a logarithmic one, whose ends must be above 0."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, values: Sequence[float], *, log: bool = False) -> Axis:
        """Make an axis that spans all values."""
        low, high = min(values, default=1.0), max(values, default=2.0)
        if high <= low:
            room = max(0.5, abs(low) / 1e9)  # adding 0.5 would not change a large float
            low, high = (low / 2, high * 2) if log else (low - room, high + room)
        return cls(low, high, log)

    def share(self, value: float) -> float:
        """Return the position of a value along the axis, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return two to seven round values inside the axis: linear steps of 1, 2 or 5 times 10^n.

        On a logarithmic axis, powers of ten; if these are fewer than three, also times 2 and 5; if
        these are fewer than three, as on a linear axis.
        """
        if self.log:
            for factors in ((1,), (1, 2, 5)):
                ticks = [x for x in self._powers(factors) if self.low <= x <= self.high]
                if len(ticks) >= 3:
                    return ticks[:: -(-len(ticks) // 7)]
        power = 10 ** math.floor(math.log10((self.high - self.low) / 6))
        step = next(power * by for by in (1, 2, 5, 10) if (self.high - self.low) / by <= 6 * power)
        # The slack keeps a tick at an end of the axis: 0.3 / 0.05 is 5.999999999999999.
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{step * number:.10g}") for number in range(first, last + 1)]

    def _powers(self, factors: Sequence[int]) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        return [float(f"{by}e{power}") for power in range(first, last + 1) for by in factors]


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart with a title and two axes."""

    title: str
    x: Axis
    y: Axis
    top: float  # pixels, as bottom and left
    bottom: float
    names: Mapping[float, str] = field(default_factory=dict)  # on the y axis; {}: numbers
    left: float = LEFT  # left end of the x axis

    def frame(self) -> str:
        """Draw the title, the grid and the tick labels."""
        named = self.names or {value: f"{value:,.10g}" for value in self.y.ticks()}
        title = (
            f'<text x="{self.left}" y="{self.top - 8}" font-weight="bold">'
            f"{escape(self.title)}</text>"
        )
        across = "".join(
            f'<text x="{self.place(x, self.y.low)[0]:.1f}" y="{self.bottom + 14}" '
            f'text-anchor="middle">{x:,.10g}</text>\n'
            for x in self.x.ticks()
        )
        up = "".join(
            f'<path d="M{self.left} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>\n'
            for y, name in ((self.place(self.x.low, at)[1], name) for at, name in named.items())
        )
        base = f'<path d="M{self.left} {self.bottom}H{WIDTH - RIGHT}" stroke="#999"/>'
        return f"{title}\n{base}\n{across}{up}"

    def line(self, points: Sequence[tuple[float, float]], colour: str = COLOUR) -> str:
        """Draw a line through points."""
        coordinates = [f"{x:.1f} {y:.1f}" for x, y in (self.place(*point) for point in points)]
        if not coordinates:
            return ""
        return f'<path d="M{"L".join(coordinates)}" fill="none" stroke="{colour}"/>\n'

    def dot(self, point: tuple[float, float], colour: str, label: str) -> str:
        """Draw a dot; its label is a tooltip."""
        x, y = self.place(*point)
        title = f"<title>{escape(label)}</title>"
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">{title}</circle>\n'

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates of a point, in pixels."""
        across, up = self.x.share(x), self.y.share(y)
        return (
            self.left + (WIDTH - RIGHT - self.left) * across,
            self.bottom - (self.bottom - self.top) * up,
        )


def legend(names: Sequence[str], top: float) -> str:
    """Draw a legend: one colour and name per line."""
    return "".join(
        f'<circle cx="{LEFT + 8}" cy="{top + 16 * i - 4}" r="4" fill="{colour_of(i)}"/>'
        f'<text x="{LEFT + 18}" y="{top + 16 * i}">{escape(name)}</text>\n'
        for i, name in enumerate(names)
    )


def colour_of(number: int) -> str:
    """Return a colour by number; the colours repeat."""
    return COLOURS[number % len(COLOURS)]


def document(body: str, height: float) -> str:
    """Make an SVG document from drawn parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}</svg>\n'
    )
