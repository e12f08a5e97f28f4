"""The measurements of `index tune`, which the manifest keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sbert_search.index.spec import IndexSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The measurements, on one thread, of one index with one set of search parameters.

    Attributes:
        spec: The FAISS index and its search parameters.
        n_rows: Number of rows searched.
        recall: Share of the k nearest rows that were returned; a row as near as the k-th counts as
            one of them.
        recall_error: Standard error of ``recall`` over the queries.
        p50_ms: Median latency of a single query.
        p99_ms: 99th percentile of the latency of a single query.
        qps: Queries per second in large batches.
        size_bytes: Bytes of the FAISS index, which is mapped from its file; 0 for an exact scan.
        predicted_bytes: Bytes predicted before the build.
        build_s: Seconds to train and fill the index.
        predicted_build_s: Seconds predicted before the build.
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
        """Bytes of the FAISS index per vector, in addition to the stored vector."""
        return self.size_bytes / self.n_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The result of a tuning: the chosen index and the measurements behind the choice.

    Attributes:
        recall: Target recall.
        k: The k of recall@k.
        queries: Where the queries came from, in words.
        n_choosing: Number of queries used to choose the index.
        n_verifying: Number of held-out queries, on which ``verified`` was measured.
        verified: Measurements of the chosen index over all rows.
        sampled: Measurements on a sample of the rows: the Pareto front of recall and speed.
        seconds: Duration of the tuning.
        machine: The machine that ran it.
        libraries: Versions of the libraries.
    """

    recall: float
    k: int
    queries: str
    n_choosing: int
    n_verifying: int
    verified: Trial
    sampled: tuple[Trial, ...] = ()
    seconds: float = 0.0
    machine: Mapping[str, object] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
