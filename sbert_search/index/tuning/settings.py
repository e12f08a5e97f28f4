"""The settings of a tuning, and the time and memory that it may use."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from sbert_search.base import memory
from sbert_search.config import require_types
from sbert_search.errors import ConfigError
from sbert_search.index.dense.faiss_build import build_bytes
from sbert_search.index.spec import MIN_ANN_ROWS, IndexSpec

MAX_K = 1000  # largest k of recall@k


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneSettings:
    """The targets of a tuning, and its limits.

    Attributes:
        recall: Target recall@k.
        k: The k of recall@k.
        memory_bytes: Memory limit of the process, in bytes. All FAISS files together may not be
            larger either. None: no limit.
        latency_ms: Limit for the median latency of one query by one thread; None: no limit.
        max_minutes: Time limit of the tuning. A kind of index is not built if the build is
            predicted to take too much of the remaining time.
        n_queries: Largest number of queries, half to choose an index with and half to verify it.
        sample_rows: Number of rows in the sample on which kinds of index are compared.
        seed: Seed for drawing the sample and the queries.

    Raises:
        ConfigError: A value has another type or is out of range.
    """

    recall: float = 0.95
    k: int = 10
    memory_bytes: int | None = None
    latency_ms: float | None = None
    max_minutes: float = 10.0
    n_queries: int = 1000
    sample_rows: int = 100_000
    seed: int = 0

    def __post_init__(self) -> None:
        require_types(self)  # the manifest stores some of the values
        if not 0 < self.recall <= 1:
            raise ConfigError(f"recall is {self.recall}; it must be above 0 and at most 1.")
        for name, fewest in (("k", 1), ("n_queries", 2), ("sample_rows", 2), ("seed", 0)):
            if getattr(self, name) < fewest:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {fewest}.")
        if self.k > MAX_K:
            raise ConfigError(
                f"k is {self.k:,}; recall is measured for at most {MAX_K:,} neighbours, so pass a "
                "smaller k."
            )
        for name, limit in (("max_minutes", self.max_minutes), ("latency_ms", self.latency_ms)):
            if limit is not None and not 0 < limit < math.inf:
                raise ConfigError(f"{name} is {limit}; it must be finite, and above 0.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The limits of time and memory of a tuning, applied to the segments of an index.

    Attributes:
        segments: Number of rows in each segment of the index.
        dim: Dimensions of a vector.
        settings: Settings of the tuning.
        n_shards: Number of shards of the index.
        started: Start of the tuning, by `time.monotonic`.
    """

    segments: tuple[int, ...]
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
        """Number of rows in each segment that is large enough for a FAISS index."""
        return [n for n in self.segments if n * self.n_shards >= MIN_ANN_ROWS]

    def total_bytes(self, spec: IndexSpec) -> int:
        """Predict the bytes of all FAISS files of the index."""
        return sum(spec.predicted_bytes(n, self.dim) for n in self.ann_segments)

    def memory_refusal(self, spec: IndexSpec, n_rows: int) -> str:
        """Return why a FAISS index does not fit into the memory budget; "" if it does.

        Args:
            spec: Spec of the index.
            n_rows: Number of rows of the segment that is built.
        """
        limit, room = self.settings.memory_bytes, memory.room(self.settings.memory_bytes)
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
            f"building it would take {seconds:,.0f} s, and {max(allowed, 0):,.0f} are left for it"
        )


def _mib(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:,.0f} MiB"
