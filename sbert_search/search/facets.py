"""Metadata columns in a search: facets of the matching documents, and hits in groups."""

from __future__ import annotations

import math
import re
import sys
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.config import is_integer
from sbert_search.errors import QueryError
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import ColumnType
from sbert_search.index.storage.rows import DistinctValues, Ordered
from sbert_search.records import ScalarValue
from sbert_search.search.fusion import Ranking
from sbert_search.search.options import SearchOptions, require_queries
from sbert_search.search.queries import ParsedQuery, parse_query
from sbert_search.search.words import (
    Marks,
    documents_of,
    documents_with_any,
    near_words,
    word_mask,
)
from sbert_search.text.column_types import parse_value

_ORDERED = ("int64", "float64", "date", "timestamp")
_Edges: TypeAlias = list[Any]  # numbers, dates or times


@dataclass(frozen=True, slots=True)
class FacetRange:
    """A range of values and the number of values in it.

    Attributes:
        low: The lowest value of the range.
        high: The end of the range. A document with exactly this value is counted in the next range.
            In the last range, this is the highest value, which is counted there; if the last of
            your own ranges is empty, it is ``low``.
        count: Number of documents with a value in the range. In a column of lists, a document
            counts once for each of its values in the range.

    Example:
        >>> FacetRange(low=1850, high=1900, count=3).count
        3
    """

    low: Ordered
    high: Ordered
    count: int


@dataclass(frozen=True, slots=True)
class Facet:
    """The values of a metadata column among the documents that match.

    Attributes:
        column: The column.
        counts: Number of documents with each of the most frequent values, the most frequent first;
            equally frequent values are in ascending order.
        other: Number of documents with a value that is not in ``counts``. In a column of lists, a
            document counts once for each such value.
        missing: Number of documents without a value.
        low: The lowest value of a column of numbers, dates or times; None for other columns.
        high: The highest value of a column of numbers, dates or times; None for other columns.
        ranges: The ranges that were asked for, or equally wide ranges of a column of numbers, dates
            or times, if the column has more different values than ``counts`` may list; else empty.
        total: Number of documents that match, with or without a value.

    Example:
        >>> rows = [{"_id": name, "text": name, "kind": "mill"} for name in ("wheel", "stone")]
        >>> SearchEngine(Index.build(rows, model="hashing")).facets(None, "kind")["kind"].counts
        {'mill': 2}
    """

    column: str
    counts: Mapping[ScalarValue, int]
    other: int
    missing: int
    low: Ordered | None = None
    high: Ordered | None = None
    ranges: tuple[FacetRange, ...] = ()
    total: int = 0


def matching_marks(snapshot: Snapshot, query: str | None, options: SearchOptions) -> Marks:
    """Mark the documents that match a query or, without a query, all that pass the filter.

    A document matches if it passes the filter and meets the operators of the query. In lexical and
    hybrid search it must also have a word of the query, unless the operators require a word. The
    mode must not be ``auto``.
    """
    mask = None if options.where is None else snapshot.own_filter_mask(options.where)
    if query is None:
        return documents_of(snapshot, mask)
    require_queries([query])
    near = near_words(snapshot, options.fuzzy) if options.fuzzy else None
    parsed = parse_query(query) if options.syntax == "operators" else ParsedQuery(query)
    if parsed.clauses:
        mask = word_mask(snapshot, parsed.clauses, mask, near)
    marks = documents_of(snapshot, mask)
    demanded = any(not clause.excluded for clause in parsed.clauses)
    if options.mode == "dense" or demanded:
        return marks
    return documents_with_any(snapshot, parsed.text, marks, near)


def count_values(snapshot: Snapshot, column: str, marks: Marks, n: int) -> Facet:
    """Count the values of a column among marked documents; list at most n values, and n ranges.

    ``column`` may have borders of ranges, as in ``price:0:50:100``.
    """
    if not (is_integer(n) and n >= 1):
        raise QueryError(f"n is {n!r}; count at least 1 value of a facet.")
    colon = ends = ""
    if column not in snapshot.columns:
        column, colon, ends = column.partition(":")
    kind, distinct = snapshot.column_type(column), snapshot.distinct_values(column)
    counts = np.zeros(len(distinct.values), np.int64)
    missing = 0
    for matching, (docs, codes) in zip(marks, distinct.parts, strict=True):
        kept = matching[docs]
        counts += np.bincount(codes[kept], minlength=len(counts))
        missing += int(matching.sum()) - len(np.unique(docs[kept]))
    present = np.flatnonzero(counts)
    first = present[np.argsort(-counts[present], kind="stable")][:n]
    inner = kind.removeprefix("list[").removesuffix("]")
    borders = _borders(ends, inner) if colon else []
    spread = _spread(distinct, present, counts, n, borders) if inner in _ORDERED else None
    low, high, ranges = spread or (None, None, ())
    return Facet(
        column,
        {distinct.value(code): int(counts[code]) for code in first.tolist()},
        int(counts.sum() - counts[first].sum()),
        missing,
        low,
        high,
        ranges,
        sum(int(matching.sum()) for matching in marks),
    )


def _borders(ends: str, kind: str) -> list[Ordered]:
    parts = re.split(r":(?=\s*\d{4})" if kind == "timestamp" else ":", ends)  # not at 12:00
    borders = [cast(Ordered, parse_value(part, cast(ColumnType, kind))) for part in parts]
    if kind not in _ORDERED or None in borders or borders != sorted(set(borders)):
        raise QueryError(
            f"{ends} are no ascending values of {kind}; write price:0:50:100, with a column of "
            "numbers, dates or times."
        )
    return borders


def _spread(
    distinct: DistinctValues,
    present: NDArray[np.int64],
    counts: NDArray[np.int64],
    n: int,
    borders: _Edges,
) -> tuple[Ordered | None, Ordered | None, tuple[FacetRange, ...]]:
    """Return the lowest value, the highest value, and the documents of each range of values.

    ``borders`` divide the ranges. Without them, more than n values are divided into n equally wide
    ranges.
    """
    numbers = distinct.numbers(present)
    low, high = map(distinct.of_number, (numbers[0], numbers[-1])) if numbers else (None, None)
    if not borders and len(numbers) <= n:
        return low, high, ()
    edges, end = borders or _equal_edges(distinct, numbers, n), high
    if low is None or high < edges[-1]:
        end = edges[-1]
    if low is not None and low < edges[0]:
        edges = [low, *edges]
    starts = [*(bisect_left(numbers, edge, key=distinct.of_number) for edge in edges), len(numbers)]
    edges = [*edges, end]
    ranges = (
        FacetRange(edges[i], edges[i + 1], int(counts[present[start:stop]].sum()))
        for i, (start, stop) in enumerate(pairwise(starts))
    )
    return low, high, tuple(ranges)


def _equal_edges(distinct: DistinctValues, numbers: list[float], n: int) -> _Edges:
    """Return the lower ends of n equally wide ranges of ascending numbers."""
    low, high = numbers[0], numbers[-1]
    if isinstance(low, int) and isinstance(high, int):
        n = min(n, high - low + 1)
        return [distinct.of_number(low + (high - low + 1) * i // n) for i in range(n)]
    # Rounding moves a border by less than a thousandth of the width of a range, and makes 343.76 of
    # 343.76000000000005.
    width = min(max(high / n - low / n, sys.float_info.min), sys.float_info.max)
    digits = 3 - math.floor(math.log10(width))
    return [low, *(round(low * (1 - i / n) + high * (i / n), digits) for i in range(1, n))]


def require_groups(snapshot: Snapshot, column: str) -> None:
    """Refuse a column that cannot group documents: it is absent, or its values are lists."""
    kind = snapshot.column_type(column)
    if kind.startswith("list["):
        raise QueryError(
            f"group_by is {column!r}, whose values are lists ({kind}); a document may be in one "
            "group only, so name a column with single values."
        )


def groups_of(snapshot: Snapshot, column: str, docs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the group of each document as a number, int64 (n,).

    A document without a value is a group of its own, since a missing value equals no other value.
    """
    require_groups(snapshot, column)
    codes = snapshot.codes_of(column, docs)
    return np.where(codes < 0, -1 - docs, codes)


def within_groups(groups: NDArray[np.int64], n_groups: int, size: int) -> NDArray[np.int64]:
    """Return indices (m,) of the best ``size`` documents of the best group, the second, and so on.

    ``groups`` has the group of each document, best first; the best group has the best document.
    """
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    rank_of_group = np.empty(len(first), np.int64)
    rank_of_group[np.argsort(first)] = np.arange(len(first))
    rank = rank_of_group[group]
    order = np.argsort(rank, kind="stable")
    ranked = rank[order]
    starts = np.searchsorted(ranked, ranked)  # where in ``order`` each document's group begins
    kept = (ranked < n_groups) & (np.arange(len(order)) - starts < size)
    return order[kept]


def holds_groups(
    snapshot: Snapshot,
    column: str,
    ranking: Ranking,
    mask: RowMask | None,
    *,
    n_groups: int,
    size: int,
) -> bool:
    """Whether a ranking has enough groups, each with ``size`` documents or with all that match."""
    groups = groups_of(snapshot, column, ranking.docs)
    found = groups[within_groups(groups, n_groups, size)]
    names, counts = np.unique(found, return_counts=True)
    if len(names) < n_groups:
        return False
    if size == 1:
        return True
    short = names[(counts < size) & (names >= 0)]
    totals = _sizes(snapshot, column, documents_of(snapshot, mask))
    return bool((counts[np.searchsorted(names, short)] >= totals[short]).all())


def count_groups(snapshot: Snapshot, column: str, marks: Marks) -> int:
    """Count the groups of marked documents, of which each without a value is one."""
    require_groups(snapshot, column)
    sizes = _sizes(snapshot, column, marks)
    return int(np.count_nonzero(sizes) - sizes.sum() + sum(int(some.sum()) for some in marks))


def _sizes(snapshot: Snapshot, column: str, marks: Marks) -> NDArray[np.int64]:
    """Count the marked documents with each value of a column, int64 (n_values,)."""
    distinct = snapshot.distinct_values(column)
    sizes = np.zeros(len(distinct.values), np.int64)
    for some, (docs, codes) in zip(marks, distinct.parts, strict=True):
        sizes += np.bincount(codes[some[docs]], minlength=len(sizes))
    return sizes
