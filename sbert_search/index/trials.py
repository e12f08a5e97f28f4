"""What was measured when the search of an index was tuned; kept in its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sbert_search.index.spec import IndexSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One way to search, as it was measured by one thread.

    Attributes:
        spec: The FAISS index and its search parameters.
        n_rows: Rows searched.
        recall: Share of the k nearest rows that came back; equally near ones count as found.
        recall_error: Its standard error over the queries.
        p50_ms: Median latency of a query that comes alone.
        p99_ms: 99th percentile of that.
        qps: Queries a second when many come together.
        size_bytes: Of the FAISS index, which is mapped and not held; 0 for an exact scan.
        predicted_bytes: What was expected of that before it was built.
        build_s: Seconds to train and to fill it.
        predicted_build_s: What was expected of that.
    """

    spec: IndexSpec
    n_rows: int
    recall: float
    recall_error: float
    p50_ms: float
    p99_ms: float
    qps: float
    size_bytes: int = 0
    predicted_bytes: int = 0
    build_s: float = 0.0
    predicted_build_s: float = 0.0

    @property
    def bytes_per_vector(self) -> float:
        """Bytes that FAISS keeps of a vector, beside the stored one."""
        return self.size_bytes / self.n_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """Why an index is searched as it is.

    Attributes:
        recall: What was asked for.
        k: Of recall@k.
        queries: Where they came from.
        n_choosing: Queries that the choice was made by.
        n_verifying: Other queries, which ``verified`` was measured on.
        verified: What was chosen, over all rows.
        sampled: What no other candidate on the sample beat in both recall and speed.
        seconds: The whole tuning.
        machine: Where it ran.
        libraries: Their versions.
    """

    recall: float
    k: int
    queries: str
    n_choosing: int
    n_verifying: int
    verified: Trial
    sampled: tuple[Trial, ...] = ()
    seconds: float = 0.0
    machine: Mapping[str, Any] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
