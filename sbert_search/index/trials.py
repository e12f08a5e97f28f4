"""The measurements by which the command `index tune` chose the FAISS index of an index.

They are kept in the manifest, the file that describes the state of an index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sbert_search.index.spec import IndexSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The measurements of one FAISS index with one set of search parameters.

    Searches are measured on one thread.

    Attributes:
        spec: The type of the FAISS index and its search parameters.
        n_rows: Number of rows (one vector each) searched.
        recall: Recall@k: the share of the exact k nearest rows that the search returns, as mean
            over the queries. A returned row counts if it is at least as near as the exact k-th.
        recall_error: Standard error of ``recall`` over the queries.
        p50_ms: Median latency of a single query in milliseconds.
        p99_ms: 99th percentile of the latency of a single query in milliseconds.
        qps: Queries per second if many queries are searched together.
        size_bytes: Bytes of the FAISS files, which a search maps into memory; 0: an exact scan.
        predicted_bytes: ``size_bytes`` as predicted before the build.
        build_s: Seconds to train and fill the FAISS index.
        predicted_build_s: ``build_s`` as predicted before the build.
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
    """The result of a tuning: the chosen FAISS index, and the measurements that decided.

    Attributes:
        recall: Target recall@k.
        k: The k of recall@k.
        queries: A description of where the queries came from.
        n_choosing: Number of queries used to choose the index.
        n_verifying: Number of held-out queries, on which ``verified`` was measured.
        verified: Measurements of the chosen FAISS index over all rows.
        sampled: Measurements on a sample of the rows that no other measurement on the sample beats
            in both recall and ``qps``, by ascending recall.
        seconds: Duration of the tuning.
        machine: The machine that ran the tuning.
        libraries: Versions of the installed libraries that the tuning used, by name.
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
