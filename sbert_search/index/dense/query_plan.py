"""Which rows of a segment a search may return, and the cheapest way to find the best of them.

The selected rows are not deleted, and match the filter if there is one. There are three ways to
search a segment that has a FAISS index:

- Few selected rows are scored exactly. So are many if the FAISS index accepts no bitmap.
- Otherwise, FAISS gets a bitmap of the selected rows. The search parameters are raised, since the
  nearest selected rows are farther away than the nearest of all rows.
- If nearly all rows are selected, FAISS searches without a bitmap, which is several times faster.
  It fetches a few more candidates, and those that are not selected are dropped.

The unit of costs is the scoring of one randomly accessed vector, the most expensive operation. See
docs/decisions.md: The number of matching rows decides how a filter runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.cache import typed_lru_cache
from sbert_search.index.settings import IndexSpec

NEARLY_ALL = 0.8  # lowest share of selected rows for which FAISS searches without a bitmap
SPARE = 4.0  # extra candidates, in standard deviations of the number of dropped candidates
TOGETHER = 0.08  # cost of scoring a row for one query, once one query of the batch has read it
TEST = 1 / 32  # cost of looking up one row in the bitmap
CODE = 0.25  # cost of scoring a compressed row when rows are read in the order of memory
WIDENING = 1.5  # a filter multiplies ef_search and nprobe by (live / selected rows) ** 1.5
WIDEST = 1 << 20  # largest ef_search
WIDER = 4  # factor by which a second FAISS search raises parameters and candidates

Route = Literal["scan", "select", "fetch"]


class Selection:
    """The rows of a segment that a search may return, by a mask, bool (n_rows,).

    ``n_live`` None: all rows that are not deleted are selected, because there is no filter.
    """

    def __init__(self, marks: NDArray[np.bool_], n_live: int | None = None) -> None:
        self.marks, self._n_live = marks, n_live

    @property
    def n_live(self) -> int:
        """Number of live rows, which a search without a filter would select."""
        return self.n_selected if self._n_live is None else self._n_live

    @cached_property
    def n_selected(self) -> int:
        """Number of selected rows."""
        return int(np.count_nonzero(self.marks))

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Positions (indices in the segment) of the selected rows, ascending."""
        return np.flatnonzero(self.marks)

    def excluded_within(self, start: int, stop: int) -> NDArray[np.int64]:
        """Positions minus ``start`` of the rows in [start, stop) that are not selected."""
        excluded = self._excluded
        return excluded[np.searchsorted(excluded, start) : np.searchsorted(excluded, stop)] - start

    @cached_property
    def _excluded(self) -> NDArray[np.int64]:
        return np.flatnonzero(~self.marks)

    @cached_property
    def bits(self) -> NDArray[np.uint8]:
        """The mask as a bitmap in the bit order that FAISS reads."""
        return np.packbits(self.marks, bitorder="little")


class Plan(NamedTuple):
    """How a segment is searched under a selection.

    ``scan`` scores the selected rows exactly. ``select`` passes FAISS a bitmap of them. ``fetch``
    lets FAISS search all rows for a few more candidates, and drops those that are not selected.
    """

    route: Route
    spec: IndexSpec  # with raised search parameters unless the route is scan
    n_candidates: int
    fallback: Plan | None = None  # for queries that get fewer than k rows; None for a scan


@typed_lru_cache(maxsize=256)
def plan(
    spec: IndexSpec,
    n_rows: int,
    n_selected: int,
    *,
    n_live: int,
    k: int,
    n_queries: int,
    takes_bitmap: bool,
) -> Plan:
    """Choose how to search a segment that has a FAISS index, for ``n_queries`` together."""
    n_candidates = k * spec.candidates_per_result
    scan = Plan("scan", spec, 0)
    if n_selected == 0:
        return scan
    share = n_selected / n_rows
    factor = (n_live / n_selected) ** WIDENING
    # Deleted rows take places among the ef_search candidates of a graph, so ef_search grows with
    # their number. nprobe does not grow with it, since a probed inverted list gives all its live
    # rows, however many rows are deleted.
    wide = _widened(spec, factor, factor * n_rows / n_live)
    if share >= NEARLY_ALL:
        dropped_sd = math.sqrt(n_candidates * (1 - share))
        fetched = min(math.ceil((n_candidates + SPARE * dropped_sd) / share), n_rows)
        next_route: Route = "select" if takes_bitmap else "fetch"
        wider = _widened(wide, WIDER, WIDER)
        fallback = Plan(next_route, wider, min(WIDER * fetched, n_rows), scan)
        return Plan("fetch", wide, fetched, fallback)
    scan_cost = n_selected * (1 / n_queries + TOGETHER)
    if not takes_bitmap or scan_cost <= _search_cost(wide, n_rows, share):
        return scan
    return Plan("select", wide, min(n_candidates, n_rows), scan)


def _widened(spec: IndexSpec, nprobe_factor: float, ef_factor: float) -> IndexSpec:
    nprobe = min(math.ceil(spec.nprobe * nprobe_factor), max(spec.n_lists, spec.nprobe))
    ef_search = min(math.ceil(spec.ef_search * ef_factor), WIDEST)
    return replace(spec, nprobe=nprobe, ef_search=ef_search)


def _search_cost(spec: IndexSpec, n_rows: int, share: float) -> float:
    """Predict the cost of one query that FAISS answers with a bitmap."""
    if spec.is_hnsw:
        return float(spec.ef_search * spec.links)
    read = n_rows * min(spec.nprobe / spec.n_lists, 1.0) if spec.n_lists else float(n_rows)
    return read * (TEST + share * (CODE if spec.is_compressed else 1.0))


@dataclass(frozen=True)
class RowMask:
    """The live rows (not deleted) that match a filter."""

    parts: tuple[NDArray[np.bool_], ...]  # for each segment, which rows match, bool (n_rows,)
    n_live: tuple[int, ...]  # for each segment, the rows that are not deleted
    n_docs: int  # that match
    n_rows: int  # that match

    @cached_property
    def selections(self) -> list[Selection]:
        """The selected rows of each segment."""
        return list(map(Selection, self.parts, self.n_live))
