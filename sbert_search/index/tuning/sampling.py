"""Drawing the rows and the queries with which a tuning compares kinds of index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import IndexStoreError
from sbert_search.index.norms import normalised
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.tuning.recall import Floats
from sbert_search.index.tuning.settings import TuneSettings
from sbert_search.index.tuning.sweep import Sample


@dataclass(frozen=True, slots=True)
class QuerySplit:
    """Queries to choose an index with, and held-out queries to verify the choice with.

    Attributes:
        choosing, verifying: Each is a pair of arrays. The first has the queries, float32
            (n_queries, dim). The second has, for each query that is the vector of a row of the
            index, the number of that row, int64 (n_queries,); -1 for queries from elsewhere.
        origin: Where the queries came from, in words.
    """

    choosing: tuple[Floats, NDArray[np.int64]]
    verifying: tuple[Floats, NDArray[np.int64]]
    origin: str


def draw(
    snapshot: Snapshot,
    settings: TuneSettings,
    queries: Floats | None,
    origin: str,
    rng: np.random.Generator,
) -> tuple[QuerySplit, Sample]:
    """Draw rows for the sample and, unless queries are given, other rows as queries.

    The queries are then split into two halves, to choose an index with and to verify it with. The
    vectors of the sample take at most a quarter of the memory budget.

    Args:
        snapshot: The state of the index.
        settings: Targets and limits of the tuning.
        queries: Queries of the user, float32 (n_queries, dim), of which at most ``n_queries`` of
            the settings are drawn. None: rows of the index serve as queries.
        origin: Where the queries came from, in words.
        rng: Source of random numbers.

    Raises:
        IndexStoreError: There are fewer than 2 queries.
    """
    n_drawn = 0 if queries is not None else min(settings.n_queries, max(snapshot.n_rows // 2, 2))
    n_sample = min(settings.sample_rows, snapshot.n_rows - n_drawn)
    if settings.memory_bytes is not None:
        n_sample = max(min(n_sample, settings.memory_bytes // (16 * snapshot.settings.dim)), 1)
    all_rows = _live_rows(snapshot, n_drawn + n_sample, rng)
    rows = rng.permutation(all_rows)[:n_drawn]  # the rows that serve as queries
    sample = Sample.of(snapshot.vectors(all_rows[~np.isin(all_rows, rows)]))
    if queries is None:
        queries = snapshot.vectors(rows)
    else:
        queries = queries[rng.permutation(len(queries))[: settings.n_queries]]
        queries = normalised(queries) if snapshot.settings.metric == "cosine" else queries
        rows = np.full(len(queries), -1, np.int64)
    half = len(queries) // 2
    if half < 1:
        count = "is 1 query" if len(queries) else "are no queries"
        raise IndexStoreError(
            f"There {count}; a tuning needs at least 2: one to choose an index by and one to "
            "verify it with."
        )
    parts = [(queries[:half], rows[:half]), (queries[half:], rows[half:])]
    return QuerySplit(parts[0], parts[1], origin), sample


def _live_rows(snapshot: Snapshot, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw live rows from each segment, in proportion to its number of live rows; ascending."""
    drawn = []
    for i in range(len(snapshot.segments)):
        rows = snapshot.live_rows_of(i)
        share = min(-(-count * len(rows) // snapshot.n_rows), len(rows))
        drawn.append(np.sort(rng.choice(rows, share, replace=False)))
    together = np.concatenate(drawn)
    return np.sort(rng.choice(together, min(count, len(together)), replace=False))
