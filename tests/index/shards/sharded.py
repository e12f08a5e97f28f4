"""Sharded indexes for the fault tests, which hold what `tests.index.faults.model` says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sbert_search.index.store import IndexStore
from tests.index.faults.model import EMPTY, Model, Operation, applied, apply

N_SHARDS = 3


def new_sharded(path: Path, operations: Sequence[Operation] = ()) -> Model:
    """Make a sharded index by operations and return what it holds."""
    IndexStore.create(path, EMPTY, n_shards=N_SHARDS)
    model: Model = {}
    with IndexStore.open(path).writer() as writer:
        for operation in operations:
            apply(writer, operation)
            model = applied(model, operation)
    return model
