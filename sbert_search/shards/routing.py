"""The rule that assigns each document to a shard, by a hash of the document's id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.storage import ids

ROUTING = "xxh3_64 of doc_id modulo the number of shards"
"""The rule, in the words of shards.json. The id tables of all segments contain the same hashes."""


def shard_of(doc_id: str, n_shards: int) -> int:
    """Return the number of the shard, from 0, that holds the document with this id."""
    return int(shards_of([doc_id], n_shards)[0])


def shards_of(doc_ids: Sequence[str], n_shards: int) -> NDArray[np.int64]:
    """Return the number of the shard of each id, int64 (n,)."""
    return shards_of_hashes(ids.hash_ids(doc_ids), n_shards)


def shards_of_hashes(hashes: NDArray[np.uint64], n_shards: int) -> NDArray[np.int64]:
    """Return the number of the shard of each hash of an id, int64 (n,).

    Args:
        hashes: Hashes of ids, uint64 (n,), such as the first row of a segment's id table.
        n_shards: Number of shards, at least 1.
    """
    return (hashes % np.uint64(n_shards)).astype(np.int64)
