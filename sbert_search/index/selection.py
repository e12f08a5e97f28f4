"""Which rows of a segment a search may return, and the cheapest way to keep to them.

A filter that leaves few rows is answered by scoring exactly those. One that leaves many goes into
FAISS as a bitmap, with the search widened by more than the rows are thinned. One that leaves nearly
all is answered by fetching a few more candidates. Costs are counted in rows scored from where they
lie scattered, the dearest thing that any of the three does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.spec import IndexSpec

NEARLY_ALL = 0.8  # share of rows above which more candidates are fetched instead of a bitmap
SPARE = 1.2  # candidates fetched beyond what that share asks for
TOGETHER = 0.08  # cost of scoring a scanned row for one more query of a block
TEST = 1 / 32  # cost of looking up one row in the bitmap
CODE = 0.25  # cost of scoring a compressed row, which lies beside the one before it
WIDENING = (
    1.5  # power of 1 / share by which a search widens: neighbours thin out at cluster borders
)
WIDEST = 1 << 20  # of a search parameter

Route = Literal["scan", "select", "fetch"]


class Selection:
    """Rows that take part in a search.

    Attributes:
        marks: bool (n_rows,).
    """

    def __init__(self, marks: NDArray[np.bool_]) -> None:
        self.marks = marks

    @cached_property
    def n_wanted(self) -> int:
        """How many they are."""
        return int(np.count_nonzero(self.marks))

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
    """

    route: Route
    spec: IndexSpec
    n_candidates: int


def plan(
    spec: IndexSpec, n_rows: int, n_wanted: int, *, k: int, n_queries: int, takes_bitmap: bool
) -> Plan:
    """Choose how to search a segment that has a FAISS index.

    Args:
        spec: The index, with the search parameters that suit all of its rows.
        n_rows: Rows of the segment.
        n_wanted: Rows that may be returned.
        k: Rows wanted of each query.
        n_queries: Queries that are asked together.
        takes_bitmap: Whether this kind of FAISS index can be given one.
    """
    n_candidates = k * spec.candidates_per_result
    if n_wanted == 0:
        return Plan("scan", spec, 0)
    share = n_wanted / n_rows
    wide = _widened(spec, 1 / share)
    if share >= NEARLY_ALL:
        n_candidates = math.ceil(n_candidates / share * SPARE) if share < 1 else n_candidates
        return Plan("fetch", wide, min(n_candidates, n_rows))
    scan_cost = n_wanted * (1 / n_queries + TOGETHER)
    if not takes_bitmap or scan_cost <= _search_cost(wide, n_rows, share):
        return Plan("scan", spec, 0)
    return Plan("select", wide, min(n_candidates, n_rows))


def _widened(spec: IndexSpec, factor: float) -> IndexSpec:
    if factor == 1:
        return spec
    factor **= WIDENING
    nprobe = min(math.ceil(spec.nprobe * factor), max(spec.n_lists, spec.nprobe))
    ef_search = min(math.ceil(spec.ef_search * factor), WIDEST)
    return replace(spec, nprobe=nprobe, ef_search=ef_search)


def _search_cost(spec: IndexSpec, n_rows: int, share: float) -> float:
    """Predict what one query costs FAISS under a bitmap."""
    if spec.is_hnsw:
        return float(spec.ef_search * spec.links)
    read = n_rows * min(spec.nprobe / spec.n_lists, 1.0) if spec.n_lists else float(n_rows)
    return read * (TEST + share * (CODE if spec.is_compressed else 1.0))
