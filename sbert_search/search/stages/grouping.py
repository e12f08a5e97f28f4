"""Grouping: a result has a few documents for each value of a metadata column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import QueryError
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.snapshot import Snapshot
from sbert_search.search.ranking import Ranking
from sbert_search.search.words.word_filter import documents_of


def require_groups(snapshot: Snapshot, column: str) -> None:
    """Refuse a column that cannot group documents.

    Raises:
        QueryError: There is no such column, or its values are lists.
    """
    kind = snapshot.column_type(column)
    if kind.startswith("list["):
        raise QueryError(
            f"group_by is {column!r}, whose values are lists ({kind}); a document may be in one "
            "group only, so name a column with single values."
        )


def groups_of(snapshot: Snapshot, column: str, docs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each document that identifies its group, int64 (n,).

    A document without a value is a group of its own, since a missing value equals no other value.
    """
    codes = snapshot.codes_of(column, docs)
    return np.where(codes < 0, -1 - docs, codes)


def within_groups(groups: NDArray[np.int64], n_groups: int, size: int) -> NDArray[np.int64]:
    """Select the documents of the first groups.

    Args:
        groups: The group of each document of a ranking, best first, (n,).
        n_groups: Number of groups to select; the best group is the one with the best document.
        size: Maximum number of documents of each group.

    Returns:
        Indices of the documents, int64 (m,): the best ``size`` of the best group, then those of the
        second group, and so on.
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
    """Whether a ranking has enough groups, each with ``size`` documents or with all that match.

    Args:
        snapshot: State of the index that the ranking belongs to.
        column: The column that groups documents.
        ranking: The documents found so far, best first.
        mask: The rows that a filter admits; None: all live rows.
        n_groups: Number of groups that are wanted.
        size: Number of documents wanted for each group.
    """
    groups = groups_of(snapshot, column, ranking.docs)
    found = groups[within_groups(groups, n_groups, size)]
    names, counts = np.unique(found, return_counts=True)
    if len(names) < n_groups:
        return False
    if size == 1:
        return True
    short = names[(counts < size) & (names >= 0)]
    totals = group_sizes(snapshot, column, mask)
    return bool((counts[np.searchsorted(names, short)] >= totals[short]).all())


def group_sizes(snapshot: Snapshot, column: str, mask: RowMask | None) -> NDArray[np.int64]:
    """Count the documents with each value of a column, int64 (n_values,).

    Args:
        snapshot: State of the index.
        column: The column.
        mask: The rows of the documents that count; None: all live rows.
    """
    distinct = snapshot.distinct_values(column)
    sizes = np.zeros(len(distinct.values), np.int64)
    for marks, (docs, codes) in zip(documents_of(snapshot, mask), distinct.parts, strict=True):
        sizes += np.bincount(codes[marks[docs]], minlength=len(sizes))
    return sizes
