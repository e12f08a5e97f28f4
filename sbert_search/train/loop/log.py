"""The log of a run, ``log.jsonl`` with one JSON object per line, and its curves as SVG."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Required, TypedDict, cast

from sbert_search.base import files
from sbert_search.base.svg import Axis, Panel, document
from sbert_search.errors import TrainingError

LOG = "log.jsonl"

LineKind = Literal["step", "dev", "speed", "event"]


class LogLine(TypedDict, total=False):
    """One line of the log. The kind of a line decides which keys it has.

    A ``step`` line has the losses and metrics of one step, a ``dev`` line the metrics of an
    evaluation; a resumed and an uninterrupted run write equal lines of these two kinds. A ``speed``
    line has speed and memory, an ``event`` line a message.
    """

    kind: Required[LineKind]
    step: Required[int]  # optimizer steps done
    epoch: int
    tokens: int
    loss: float
    lr: float
    gradient_norm: float
    losses: dict[str, float]
    figures: dict[str, float]  # metrics by name; null in the file if not finite
    tokens_per_s: float
    rows_per_s: float
    gemm_share: float  # estimated FLOP/s, divided by those measured for a matrix product
    memory_bytes: int
    seconds: float
    message: str


class Log:
    """Writes the log of a run; old lines after ``after_step``, where it resumes, are dropped."""

    def __init__(self, path: Path, after_step: int) -> None:
        self.path = path
        kept = [line for line in read_log(path) if line["step"] <= after_step] if after_step else []
        with self._as_training_error():
            files.replace_file(path, b"".join(map(_encoded, kept)))
            self._fd = files.disk.open_append(path)

    def write(self, kind: LineKind, step: int, **values: object) -> None:
        """Append one line."""
        line = _encoded({"kind": kind, "step": step, **values})
        with self._as_training_error():
            if files.disk.write(self._fd, memoryview(line)) < len(line):
                raise OSError("only a part of a line was written")

    def sync(self) -> None:
        """Make the lines durable; call it before the checkpoint of the same step is saved."""
        with self._as_training_error():
            files.disk.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @contextmanager
    def _as_training_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"{self.path} cannot be written: {error}. Free disk space, then use --resume."
            ) from error


def read_log(path: Path) -> list[LogLine]:
    """Read a log; lines that are not JSON objects with a step are dropped.

    A killed process leaves an incomplete last line, a power failure perhaps zeros or other bytes.
    """
    if not path.exists():
        return []
    found = []
    for data in path.read_bytes().split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):
            if isinstance(line := json.loads(data), dict) and "step" in line:
                if isinstance(figures := line.get("figures"), dict):
                    line["figures"] = {n: math.nan if v is None else v for n, v in figures.items()}
                found.append(line)
    return cast(list[LogLine], found)


def _encoded(line: Mapping[str, object]) -> bytes:
    figures = line.get("figures")
    if isinstance(figures, Mapping):  # JSON has no NaN
        line = {**line, "figures": {n: v if math.isfinite(v) else None for n, v in figures.items()}}
    return json.dumps(line).encode() + b"\n"


PANEL, TOP = 190, 26  # pixels: height of a panel, and of its title
MOST_POINTS = 600  # largest number of points of a curve, about what a screen can show

Points = list[tuple[float, float]]


def draw_curves(log: Sequence[LogLine]) -> str:
    """Draw the finite values of loss, dev metrics and learning rate over the steps, as SVG."""
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
