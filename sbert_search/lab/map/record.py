"""The data of a map, with the metadata columns of its documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.storage.manifest import ColumnType, Metric
from sbert_search.lab.map.layout import Floats, Neighbours
from sbert_search.lab.map.settings import MapSettings
from sbert_search.records import MetadataValue, ScalarValue

MOST_CHARACTERS = 8_000_000  # characters of the different values of a column on a page
CUT = 200  # characters of each value that are kept if a column is too long
_SAFE = 2**53  # JavaScript's numbers, float64, represent all integers up to this exactly

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Kind: TypeAlias = Literal["number", "time", "date"]


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of numbers, dates or times."""

    name: str
    kind: Kind  # dates and times are milliseconds since 1970 in UTC
    numbers: NDArray[np.float64]  # float64 (n,); NaN for a document without a value


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of texts, truth values, large integers or lists."""

    name: str
    kind: ColumnType  # in the index
    values: list[str]  # the different ones, by descending number of documents
    starts: NDArray[np.uint32]  # (n + 1,): codes[starts[i]:starts[i + 1]] are of document i
    codes: NDArray[np.uint32]  # indices in ``values``
    missing: NDArray[np.uint32]  # documents without a value; an empty list is a value
    is_cut: bool  # to `CUT` characters of each value; in total, they would be too long


MapColumn: TypeAlias = NumberColumn | TextColumn


def gather(
    metadata: Sequence[Mapping[str, MetadataValue]], kinds: Mapping[str, ColumnType]
) -> tuple[list[MapColumn], list[str]]:
    """Make the columns of a page, sorted by name, from the metadata of its documents.

    Also returns the names of the columns that are left out, since their values have too many
    characters in total even if each value is cut.
    """
    columns: list[MapColumn] = []
    left_out = []
    for name, kind in sorted(kinds.items()):
        values = [document.get(name) for document in metadata]
        column = _numbers(name, kind, values) or _texts(name, kind, values)
        if column is None:
            left_out.append(name)
        else:
            columns.append(column)
    return columns, left_out


def _numbers(name: str, kind: ColumnType, values: Sequence[MetadataValue]) -> NumberColumn | None:
    """Make a column of numbers or times; None for another type, or for too large integers."""
    kinds: dict[str, Kind] = {
        "int64": "number",
        "float64": "number",
        "timestamp": "time",
        "date": "date",
    }
    if kind not in kinds:
        return None
    if kind == "int64" and any(isinstance(v, int) and abs(v) > _SAFE for v in values):
        return None
    return NumberColumn(name, kinds[kind], np.array([_number(value) for value in values], float))


def _number(value: MetadataValue) -> float:
    if isinstance(value, datetime):  # a datetime is a date too
        return (value - _EPOCH) // timedelta(microseconds=1) / 1000
    if isinstance(value, date):
        return (value - _EPOCH.date()).days * 86_400_000.0
    return float(value) if isinstance(value, (int, float)) else float("nan")


def _texts(name: str, kind: ColumnType, values: Sequence[MetadataValue]) -> TextColumn | None:
    """Make a column of texts, cut if they are too long in total; None if that is not enough."""
    lists = [_as_texts(value) for value in values]
    is_cut = _are_too_long({text for texts in lists for text in texts})
    if is_cut:
        lists = [list(dict.fromkeys(text[:CUT] for text in texts)) for texts in lists]
    flat = [text for texts in lists for text in texts]
    counts = Counter(flat)
    if is_cut and _are_too_long(counts):
        return None
    known = sorted(counts, key=lambda text: (-counts[text], text))
    code_of = {text: code for code, text in enumerate(known)}
    starts = np.zeros(len(lists) + 1, np.uint32)
    np.cumsum([len(texts) for texts in lists], out=starts[1:])
    codes = np.fromiter((code_of[text] for text in flat), np.uint32, len(flat))
    missing = np.flatnonzero([value is None for value in values]).astype(np.uint32)
    return TextColumn(name, kind, known, starts, codes, missing, is_cut)


def _are_too_long(texts: Iterable[str]) -> bool:
    return sum(map(len, texts)) > MOST_CHARACTERS


def _as_texts(value: MetadataValue) -> list[str]:
    if value is None:
        return []
    if isinstance(value, (str, int, float, date)):
        return [_text(value)]
    return list(dict.fromkeys(map(_text, value)))


def _text(value: ScalarValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    return value.isoformat() if isinstance(value, date) else str(value)


@dataclass(frozen=True, slots=True)
class MarkedQuery:
    """The hits of a query that are on a map."""

    text: str
    at: list[int]  # numbers of the hits among the documents of the map, best first
    scores: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusMap:
    """A two-dimensional map of the documents of an index.

    Document i is described by the i-th entry of each list and array.

    Attributes:
        index: Path of the index.
        model: Name of the model that made the vectors.
        metric: Metric of the index.
        settings: How the map was made.
        n_indexed: Number of documents of the index, of which the map may show only a sample.
        doc_ids: Ids of the documents.
        titles: Titles; for a document without a title, the beginning of its text.
        texts: The beginning of each text.
        columns: Metadata columns.
        left_out: Metadata columns that are not in ``columns``, since their values are too long in
            total even if each value is cut.
        axes: Coordinates on the two principal axes, float32 (n, 2).
        layout: Coordinates of t-SNE, which keeps neighbours together, float32 (n, 2).
        cluster: Number of each document's cluster, int32 (n,); cluster 0 is the largest.
        words: Words that are frequent in each cluster and rare in others.
        neighbours: The nearest documents of each document.
        distances: Mean distance of each document to its neighbours, float32 (n,); outliers have the
            largest distances.
        group: Number of each document's group of near-duplicates, int32 (n,); -1 for a
            document without near-duplicates.
        queries: Hits of the queries that are marked on the map.

    Example:
        >>> map_index("my.index", neighbours=2, clusters=1).doc_ids
        ['mill', 'bread', 'moon']
    """

    index: str
    model: str
    metric: Metric
    settings: MapSettings
    n_indexed: int
    doc_ids: list[str]
    titles: list[str]
    texts: list[str]
    columns: list[MapColumn]
    left_out: list[str]
    axes: Floats
    layout: Floats
    cluster: NDArray[np.int32]
    words: list[list[str]]
    neighbours: Neighbours
    distances: Floats
    group: NDArray[np.int32]
    queries: Sequence[MarkedQuery] = ()

    def __len__(self) -> int:
        return len(self.doc_ids)

    def outliers(self, most: int = 20) -> list[int]:
        """Return the numbers of the documents that are farthest from their neighbours."""
        order: list[int] = np.argsort(-self.distances, kind="stable")[:most].tolist()
        return order

    @property
    def has_groups(self) -> bool:
        """Whether near-duplicates were looked for: always, except with the metric euclidean."""
        return self.metric != "euclidean"

    def groups(self) -> list[list[int]]:
        """Return the numbers of the documents of each group of near-duplicates, largest first."""
        order = np.argsort(self.group, kind="stable")
        order = order[self.group[order] >= 0]
        borders = np.flatnonzero(np.diff(self.group[order])) + 1
        return [part.tolist() for part in np.split(order, borders) if len(part)]
