"""Which rows of a segment a search may return, and the cheapest way to keep to them.

A filter that leaves few rows is answered by scoring exactly those. One that leaves many goes into
FAISS as a bitmap, with the search widened by more than the rows are thinned. One that leaves nearly
all, and dead rows, are answered by fetching a few more candidates: FAISS is several times slower
where it has to ask about each row. Costs are counted in rows scored from where they lie scattered,
the dearest thing that any of the three does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.spec import IndexSpec

NEARLY_ALL = 0.8  # share of rows above which more candidates are fetched instead of a bitmap
SPARE = 4.0  # standard deviations of the rows dropped that are fetched beyond their mean
TOGETHER = 0.08  # cost of scoring a scanned row for one more query of a block
TEST = 1 / 32  # cost of looking up one row in the bitmap
CODE = 0.25  # cost of scoring a compressed row, which lies beside the one before it
WIDENING = (
    1.5  # power of 1 / share by which a search widens: neighbours thin out at cluster borders
)
WIDEST = 1 << 20  # of a search parameter
WIDER = 4  # times as wide once more, where a search comes back short

Route = Literal["scan", "select", "fetch"]


class Selection:
    """Rows that take part in a search.

    Attributes:
        marks: bool (n_rows,).
        n_live: Rows that take part where there is no filter; None: these, there is none.
    """

    def __init__(self, marks: NDArray[np.bool_], n_live: int | None = None) -> None:
        self.marks, self._n_live = marks, n_live

    @property
    def n_live(self) -> int:
        """How many take part where there is no filter."""
        return self.n_selected if self._n_live is None else self._n_live

    @cached_property
    def n_selected(self) -> int:
        """How many they are."""
        return int(np.count_nonzero(self.marks))

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Their positions, rising."""
        return np.flatnonzero(self.marks)

    def excluded_within(self, start: int, stop: int) -> NDArray[np.int64]:
        """Positions of the other rows from ``start`` up to ``stop``, counted from ``start``."""
        others = self._others
        return others[np.searchsorted(others, start) : np.searchsorted(others, stop)] - start

    @cached_property
    def _others(self) -> NDArray[np.int64]:
        return np.flatnonzero(~self.marks)

    @cached_property
    def bits(self) -> NDArray[np.uint8]:
        """The marks, eight in a byte, as FAISS reads them."""
        return np.packbits(self.marks, bitorder="little")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a segment is searched under a selection.

    Attributes:
        route: Score exactly the wanted rows; give FAISS a bitmap; or fetch more and drop some.
        spec: Search parameters, widened.
        n_candidates: What FAISS is asked for.
        fallback: The plan for queries that get fewer than k rows; None: this plan finds them all.
    """

    route: Route
    spec: IndexSpec
    n_candidates: int
    fallback: Plan | None = None


@lru_cache(maxsize=256)
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
    """Choose how to search a segment that has a FAISS index.

    Args:
        spec: The index, with the search parameters that suit all of its rows.
        n_rows: Rows of the segment.
        n_selected: Rows that may be returned.
        n_live: Rows that might be if there were no filter.
        k: Rows wanted of each query.
        n_queries: Queries that are asked together.
        takes_bitmap: Whether this kind of FAISS index can be given one.
    """
    n_candidates = k * spec.candidates_per_result
    scan = Plan("scan", spec, 0)
    if n_selected == 0:
        return scan
    share = n_selected / n_rows
    thinned = (n_live / n_selected) ** WIDENING
    # A walk over a graph stops at dead rows too; lists hold as many live ones as in a new index.
    wide = _widened(spec, thinned, thinned * n_rows / n_live)
    if share >= NEARLY_ALL:
        dropped = math.sqrt(n_candidates * (1 - share))
        fetched = min(math.ceil((n_candidates + SPARE * dropped) / share), n_rows)
        next_route: Route = "select" if takes_bitmap else "fetch"
        wider = _widened(wide, WIDER, WIDER)
        fallback = Plan(next_route, wider, min(WIDER * fetched, n_rows), scan)
        return Plan("fetch", wide, fetched, fallback)
    scan_cost = n_selected * (1 / n_queries + TOGETHER)
    if not takes_bitmap or scan_cost <= _search_cost(wide, n_rows, share):
        return scan
    return Plan("select", wide, min(n_candidates, n_rows), scan)


def _widened(spec: IndexSpec, lists: float, graph: float) -> IndexSpec:
    nprobe = min(math.ceil(spec.nprobe * lists), max(spec.n_lists, spec.nprobe))
    ef_search = min(math.ceil(spec.ef_search * graph), WIDEST)
    return replace(spec, nprobe=nprobe, ef_search=ef_search)


def _search_cost(spec: IndexSpec, n_rows: int, share: float) -> float:
    """Predict what one query costs FAISS under a bitmap."""
    if spec.is_hnsw:
        return float(spec.ef_search * spec.links)
    read = n_rows * min(spec.nprobe / spec.n_lists, 1.0) if spec.n_lists else float(n_rows)
    return read * (TEST + share * (CODE if spec.is_compressed else 1.0))


@dataclass(frozen=True)
class RowMask:
    """Live rows that match a filter.

    Attributes:
        parts: For each segment, bool (n_rows,).
        n_live: For each segment, the rows that a search without the filter finds.
        n_docs: Documents that match.
        n_rows: Rows that match.
    """

    parts: tuple[NDArray[np.bool_], ...]
    n_live: tuple[int, ...]
    n_docs: int
    n_rows: int

    @cached_property
    def selections(self) -> list[Selection]:
        """The parts as searches take them."""
        return list(map(Selection, self.parts, self.n_live))
