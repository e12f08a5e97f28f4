"""The figures of an analysis of errors, as data, JSON and tables."""

from __future__ import annotations

from dataclasses import dataclass

from sbert_search.config import to_mapping
from sbert_search.lab.errors.slices import ErrorSlice, shown

Table = tuple[list[str], list[list[object]]]
_CUT = 60  # characters of a text in a table


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedText:
    """A document that is relevant to a query, or that the search found for the query.

    Attributes:
        doc_id: Id of the document.
        rank: Rank of the document for the query, from 1; None if it was not found.
        score: Score of the document for the query; None if it was not found.
        grade: Judged relevance of the document; None if it was not judged.
        text: Title and text, shortened.
        words: Number of words of the whole document.
        shared: Words of the query that also occur in the document, as the query writes them.
        forms: Words of ``text`` that also occur in the query, as ``text`` writes them. Their
            inflections may differ from those in the query.
    """

    doc_id: str
    rank: int | None
    score: float | None
    grade: int | None
    text: str
    words: int
    shared: tuple[str, ...]
    forms: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorItem:
    """One of the worst items of a run: a query, or a pair of texts.

    Attributes:
        item: Id of the query, or number of the pair in its file, from 0.
        value: Metric of the item.
        texts: The query, or the two texts of the pair.
        words: Number of words of each text.
        expected: For a query, the ranks at which its relevant documents were found; for a pair, its
            gold score and rank.
        came: For a query, the first document found; for a pair, its predicted score and rank.
        shared: For a pair, the words of the first text that also occur in the second text. For a
            query, its words that also occur in the relevant document with the most words of the
            query.
        forms: For a pair, the words of the second text that also occur in the first text.
        features: Value of each feature by which items are sliced; None if the item has no value.
        relevant: For a query, up to 3 relevant documents: first the documents that the search
            found, in the order of their ranks; then the others, by descending grade.
        found: For a query, the first 3 documents that the search found.
    """

    item: str
    value: float
    texts: tuple[str, ...]
    words: tuple[int, ...]
    expected: str
    came: str
    shared: tuple[str, ...]
    features: dict[str, float | None]
    forms: tuple[str, ...] = ()
    relevant: tuple[JudgedText, ...] = ()
    found: tuple[JudgedText, ...] = ()


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
                _ends(each.interval),
                "-" if each.difference is None else f"{each.difference:+.4f}",
                _ends(each.difference_interval, signed=True),
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


def _ends(interval: tuple[float, float] | None, *, signed: bool = False) -> str:
    if interval is None:
        return "-"
    sign = "+" if signed else ""
    return f"{interval[0]:{sign}.4f} to {interval[1]:{sign}.4f}"
