"""Answers the same queries by batches of several sizes, in a process of its own.

``python -m tests.index.faults.asker FOLDER`` prints, for each index in the folder and each batch
size, a digest of rows and scores, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from sbert_search.index.store import IndexStore
from tests.index.batches import some_vectors

BATCHES = (1, 7, 64)
N_QUERIES, K, DIM = 64, 10, 32


def main() -> None:
    """Ask each index in turn."""
    queries = some_vectors(N_QUERIES, DIM, seed=3)
    told = {}
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        snapshot = IndexStore.open(folder).snapshot
        for batch in BATCHES:
            starts = range(0, N_QUERIES, batch)
            parts = [snapshot.search(queries[i : i + batch], K) for i in starts]
            scores, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
            digest = hashlib.sha256(rows.tobytes() + scores.tobytes())
            told[f"{folder.name} by {batch}"] = digest.hexdigest()
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
