"""Which shard of an index holds a document: a hash of its id decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.storage import ids

ROUTING = "xxh3_64 of doc_id modulo the number of shards"
"""The rule, as the manifest names it. The hash is the one in the id tables of the shards."""


def shard_of(doc_id: str, n_shards: int) -> int:
    """Return the number of the shard, from 0, that holds the document of this id."""
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
