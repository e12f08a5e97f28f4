"""The kinds of index that `index tune` compares, and the search parameters that it tries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sbert_search.index.dense.faiss_build import ROWS_PER_LIST
from sbert_search.index.spec import MIN_ANN_ROWS, IndexSpec

# Values of nprobe and of ef_search to try.
_NPROBE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_EF = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of index. Its number of inverted lists depends on the number of rows.

    Attributes:
        pattern: A FAISS factory string with ``{lists}`` for the number of inverted lists.
        refines: Values of `IndexSpec.refine` to try, ascending. ``refine`` is the number of
            candidates that FAISS returns per result. The candidates are then scored again with the
            stored vectors.
    """

    pattern: str
    refines: tuple[int, ...] = (1,)

    @property
    def name(self) -> str:
        """The pattern with dots for the number of inverted lists, as people read it."""
        return self.pattern.format(lists="...")

    def spec(self, n_rows: int) -> IndexSpec:
        """Return the spec of this kind for an index of ``n_rows`` rows."""
        return IndexSpec(factory=self.pattern.format(lists=lists_for(n_rows)))

    def ladders(self, spec: IndexSpec) -> Iterator[list[IndexSpec]]:
        """Yield, for each value of refine, a ladder: specs with ascending nprobe or ef_search.

        Args:
            spec: A spec of this kind; all specs have its factory string.
        """
        for refine in self.refines:
            base = replace(spec, refine=refine)
            if spec.n_lists:
                yield [replace(base, nprobe=n) for n in _NPROBE if n <= spec.n_lists]
            elif spec.is_hnsw:
                yield [replace(base, ef_search=ef) for ef in _EF]
            else:
                yield [base]


def between(low: IndexSpec, high: IndexSpec) -> IndexSpec | None:
    """Return the spec halfway between two specs of a ladder; None if they are neighbours."""
    nprobe = (low.nprobe + high.nprobe) // 2
    ef_search = (low.ef_search + high.ef_search) // 2
    middle = replace(high, nprobe=nprobe, ef_search=ef_search)
    return None if middle == low else middle


def families(n_rows: int, dim: int) -> list[Family]:
    """List the kinds of index to compare, cheapest to build first.

    Args:
        n_rows: Number of rows in the largest segment, times the number of shards.
        dim: Dimensions of a vector.
    """
    exact = Family("Flat")
    if n_rows < MIN_ANN_ROWS:
        return [exact]
    half = dim // 2 if dim % 2 == 0 else dim  # sub-vectors of PQ; FAISS requires a divisor of dim
    return [
        exact,
        Family("IVF{lists},Flat"),
        Family("IVF{lists},SQfp16"),
        Family("IVF{lists},SQ8", (2, 4)),
        Family(f"IVF{{lists}},PQ{half}x4fs", (4, 10, 25)),
        Family("IVF{lists},RaBitQfs", (5, 10, 25, 60)),
        Family("HNSW16,SQ8", (2, 4)),
        Family("HNSW16,SQbf16", (1, 2)),
        Family("HNSW32,SQbf16", (1, 2)),
    ]


def lists_for(n_rows: int) -> int:
    """Return the number of inverted lists: a power of two near twice the square root of the rows.

    The number is lower if there would be fewer than `ROWS_PER_LIST` rows to train each list
    (docs/decisions.md: Twice the square root of the rows as lists).
    """
    preferred = 1 << round(math.log2(max(2 * math.sqrt(n_rows), 1)))
    most = 1 << int(math.log2(max(n_rows / ROWS_PER_LIST, 1)))
    return min(preferred, most)
