"""The limits of a tuning, and the kinds of index that it compares."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sbert_search.base import memory
from sbert_search.index.dense.faiss_build import ROWS_PER_LIST, build_bytes
from sbert_search.index.settings import MIN_ANN_ROWS, IndexSpec
from sbert_search.index.settings import TuneSettings as TuneSettings

TOO_LATE = "too little time"  # begins each reason that a longer tuning would not have


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The limits of time and memory of a tuning, applied to the segments of an index."""

    segments: tuple[int, ...]  # number of rows in each segment
    dim: int
    settings: TuneSettings
    n_shards: int = 1
    started: float = field(default_factory=time.monotonic)

    @property
    def largest(self) -> int:
        """Number of rows in the largest segment."""
        return max(self.segments)

    @property
    def seconds_left(self) -> float:
        """Seconds until ``max_minutes`` are over; may be negative."""
        return 60 * self.settings.max_minutes - (time.monotonic() - self.started)

    @property
    def ann_segments(self) -> list[int]:
        """Number of rows in each segment that gets a FAISS file: all of them, or none."""
        return list(self.segments) if sum(self.segments) >= MIN_ANN_ROWS else []

    def total_bytes(self, spec: IndexSpec) -> int:
        """Predict the bytes of all FAISS files of the index."""
        return sum(spec.predicted_bytes(n, self.dim) for n in self.ann_segments)

    def memory_refusal(self, spec: IndexSpec, n_rows: int) -> str:
        """Return why a FAISS index of ``n_rows`` does not fit into the memory; "" if it does."""
        limit, room = memory.limit(), memory.unused()
        if limit is None or room is None:
            return ""
        total, peak = self.total_bytes(spec), build_bytes(spec, n_rows, self.dim)
        if total > limit:
            return f"its files would take {_mib(total)}, and {_mib(limit)} are allowed"
        if peak > room:
            return f"building it would take {_mib(peak)}, and {_mib(room)} are left"
        return ""

    def time_refusal(self, seconds: float, share: float = 1.0) -> str:
        """Return why a build takes more than a share of the time left; "" if it does not."""
        allowed = share * self.seconds_left
        if seconds <= allowed:
            return ""
        return (
            f"{TOO_LATE}, as building it would take {seconds:,.0f} s, and {max(allowed, 0):,.0f} "
            "are left for it"
        )


def _mib(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:,.0f} MiB"


# Values of nprobe and of ef_search to try.
_NPROBE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_EF = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of index. Its number of inverted lists depends on the number of rows.

    A search with ``refine`` scores that many candidates per result again with the stored vectors.
    """

    pattern: str  # a FAISS factory string with {lists}
    refines: tuple[int, ...] = (1,)  # values of `IndexSpec.refine` to try, ascending

    @property
    def name(self) -> str:
        """The pattern with dots for the number of inverted lists, as people read it."""
        return self.pattern.format(lists="...")

    def spec(self, n_rows: int) -> IndexSpec:
        """Return the spec of this kind for an index of ``n_rows`` rows."""
        return IndexSpec(factory=self.pattern.format(lists=lists_for(n_rows)))

    def ladders(self, spec: IndexSpec) -> Iterator[list[IndexSpec]]:
        """Yield, for each value of refine, a ladder: specs with ascending nprobe or ef_search."""
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

    ``n_rows`` is the number of rows in the index.
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

    It is lower if there would be fewer than `ROWS_PER_LIST` rows to train each list. With fast-scan
    codes, a search spends its time on comparing the query with centroids, not on scanning lists.
    """
    preferred = 1 << round(math.log2(max(2 * math.sqrt(n_rows), 1)))
    most = 1 << int(math.log2(max(n_rows / ROWS_PER_LIST, 1)))
    return min(preferred, most)
