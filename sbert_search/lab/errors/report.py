"""The figures of an analysis of errors, as data, JSON, tables, SVG and an HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sbert_search.base.svg import COLOUR, COLOURS, Axis, Panel, document
from sbert_search.config import to_mapping
from sbert_search.errors import ConfigError
from sbert_search.lab.errors.slices import ErrorSlice, shown
from sbert_search.lab.templates import embed_json, fill_page, read_page_file, write_files

Table = tuple[list[str], list[list[object]]]
_CUT = 60  # characters of a text in a table


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedText:
    """A document that is relevant to a query, or that the search found for the query."""

    doc_id: str
    rank: int | None  # from 1; None: not found
    score: float | None  # None: not found
    grade: int | None  # judged relevance; None: not judged
    text: str  # title and text, shortened
    words: int  # number of words of the whole document
    shared: tuple[str, ...]  # words of the query that are in the document, as the query writes them
    forms: tuple[str, ...] = ()  # words of ``text`` that are in the query, as ``text`` writes them


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorItem:
    """One of the worst items of a run: a query, or a pair of texts."""

    item: str  # id of the query, or number of the pair in its file, from 0
    value: float  # of the metric
    texts: tuple[str, ...]  # the query, or the two texts of the pair
    words: tuple[int, ...]  # number of words of each text
    expected: str  # ranks of the relevant documents; or gold score and rank
    came: str  # the first document found; or predicted score and rank
    # For a pair, the words of the first text that also occur in the second text. For a query, its
    # words that also occur in the relevant document with the most words of the query.
    shared: tuple[str, ...]
    features: dict[str, float | None]  # None: the item has no value
    forms: tuple[str, ...] = ()  # of a pair: words of the second text that are in the first
    # Up to 3: first the documents that the search found, in the order of their ranks; then the
    # others, by descending grade.
    relevant: tuple[JudgedText, ...] = ()
    found: tuple[JudgedText, ...] = ()  # the first 3 that the search found


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorReport:
    """The result of `analyze_errors` for one task.

    Attributes:
        task: Name of the task.
        kind: retrieval or sts.
        model: Name of the model.
        metric: Metric of an item, such as nDCG@10; for STS, rank error: the distance between the
            predicted and the gold rank of a pair, as a share of the number of pairs.
        higher_is_better: Whether a higher metric is better.
        mean: Mean of the metric over the analysed items.
        items: Number of analysed items.
        left_out: Number of judged queries without a relevant document, which are not analysed.
        language: Language in which words are compared, as in `ErrorOptions`.
        slices: Groups of items with similar values of a feature, compared with the other items.
        worst: The worst items, the worst first.

    Example:
        >>> [report] = analyze_errors("my-run")
        >>> report.items, report.higher_is_better
        (64, False)
    """

    task: str
    kind: str
    model: str
    metric: str
    higher_is_better: bool
    mean: float
    items: int
    left_out: int
    language: str
    slices: tuple[ErrorSlice, ...]
    worst: tuple[ErrorItem, ...]

    def to_mapping(self) -> dict[str, object]:
        """Return all figures as JSON values."""
        return to_mapping(self)

    def slice_table(self) -> Table:
        """Columns and rows of a table of the slices."""
        columns = ["slice by", "from", "to", "items", self.metric, "95 % interval"]
        columns += ["minus others", "interval", "worse"]
        rows: list[list[object]] = [
            [
                each.feature,
                shown(each.low),
                shown(each.high),
                each.items,
                each.mean,
                _format_interval(each.interval),
                "-" if each.difference is None else f"{each.difference:+.4f}",
                _format_interval(each.difference_interval, signed=True),
                "worse" if each.worse else "",
            ]
            for each in self.slices
        ]
        return columns, rows

    def worst_table(self, most: int) -> Table:
        """Columns and rows of a table of the worst items."""
        if self.kind == "sts":
            columns = ["pair", self.metric, "first text", "second text", "expected", "came"]
            rows: list[list[object]] = [
                [each.item, each.value, *map(cut, each.texts), each.expected, each.came]
                for each in self.worst[:most]
            ]
            return columns, rows
        columns = ["query", self.metric, "text", "expected", "came", "words in common"]
        return columns, [
            [
                each.item,
                each.value,
                cut(each.texts[0]),
                each.expected,
                each.came,
                " ".join(each.shared) or "none",
            ]
            for each in self.worst[:most]
        ]


def cut(text: str, most: int = _CUT) -> str:
    """Shorten a text to one line of at most ``most`` characters."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 3]}..."


def _format_interval(interval: tuple[float, float] | None, *, signed: bool = False) -> str:
    if interval is None:
        return "-"
    sign = "+" if signed else ""
    return f"{interval[0]:{sign}.4f} to {interval[1]:{sign}.4f}"


def make_page(report: ErrorReport) -> str:
    """Return a page with the slices, and the worst items with their texts."""
    return fill_page(
        read_page_file(__file__, "errors.html"),
        title=f"Errors of {report.model} on {report.task}",
        style=read_page_file(__file__, "errors.css"),
        script=read_page_file(__file__, "errors.js"),
        data={"DATA": embed_json(report.to_mapping())},
    )


# Pixels: height of a row; space above, below and to the left of the rows.
_ROW, _TOP, _BELOW, _LEFT = 20, 40, 40, 330


def require_other_folder(run: str | Path, out: str | Path) -> None:
    """Refuse to write the analysis into the folder of the run.

    In that folder, ``eval compare`` would read the JSON files of the analysis as records.
    """
    path, out = Path(run), Path(out)
    folder = path if path.is_dir() else path.parent
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out: {out} is a file; name a folder.")
    if out.resolve() == folder.resolve():
        raise ConfigError(
            f"--out: {out} holds the records of the run, and eval compare reads every JSON file in "
            "it; name another folder."
        )


def write_errors(reports: Sequence[ErrorReport], out: str | Path) -> list[Path]:
    """Write ``errors-TASK.json``, ``.svg`` and ``.html`` for each task; return their paths.

    Example:
        >>> [path.suffix for path in write_errors(analyze_errors("my-run"), "out")]
        ['.json', '.svg', '.html']
    """
    written = []
    for report in reports:
        texts = {
            "json": json.dumps(report.to_mapping(), indent=1, ensure_ascii=False) + "\n",
            "svg": draw(report),
            "html": make_page(report),
        }
        contents = {
            f"errors-{report.task}.{ending}": text.encode("utf-8", "surrogatepass")
            for ending, text in texts.items()
        }
        written += write_files(out, contents)
    return written


def draw(report: ErrorReport) -> str:
    """Draw mean and interval of each slice, and the mean of all items as a vertical line."""
    rows = list(enumerate(reversed(report.slices)))
    ends = [end for _, each in rows for end in each.interval or (each.mean,)]
    names = {float(at): f"{each.feature}: {each.range} ({each.items:,})" for at, each in rows}
    bottom = _TOP + _ROW * max(len(rows), 1)
    title = f"{report.task}: {report.metric} by slice, with 95 % intervals"
    y_axis = Axis(-0.5, len(rows) - 0.5)
    panel = Panel(title, Axis.of([*ends, report.mean]), y_axis, _TOP, bottom, names, _LEFT)
    drawn = panel.frame() + panel.line(
        [(report.mean, -0.5), (report.mean, len(rows) - 0.5)], "#999"
    )
    for at, each in rows:
        colour = COLOURS[1] if each.worse else COLOUR
        label = f"{each.mean:.4f}"
        if each.interval:
            drawn += panel.line([(end, float(at)) for end in each.interval], colour)
            label += ", {:.4f} to {:.4f}".format(*each.interval)
        drawn += panel.dot((each.mean, float(at)), colour, label)
    return document(drawn, bottom + _BELOW)
