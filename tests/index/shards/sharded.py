"""Sharded indexes for the fault tests, which hold what `tests.index.faults.model` says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sbert_search.index.shards.store import ShardedStore, ShardedStores
from tests.index.faults.model import EMPTY, Model, Operation, applied, apply

N_SHARDS = 3


def new_sharded(path: Path, operations: Sequence[Operation] = ()) -> Model:
    """Make a sharded index by operations and return what it holds."""
    ShardedStores(N_SHARDS).create(path, EMPTY)
    model: Model = {}
    with ShardedStore.open(path).writer() as writer:
        for operation in operations:
            apply(writer, operation)
            model = applied(model, operation)
    return model
