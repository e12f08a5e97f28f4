"""An index of three topics, with columns of every kind, and its map."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.index.index import Index
from sbert_search.lab.map.making import map_index
from sbert_search.lab.map.record import CorpusMap

N, TOPICS = 90, ("mill wheel river", "bread dough oven", "vaccine immune virus")


def clustered(n: int = N, dim: int = 16, seed: int = 3, n_topics: int = 3) -> NDArray[np.float32]:
    """Unit vectors around orthogonal centres: vector i belongs to topic i % n_topics."""
    rng = np.random.default_rng(seed)
    vectors = 0.15 * rng.normal(size=(n, dim))
    vectors[np.arange(n), np.arange(n) % n_topics] += 1
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


def rows(n: int = N) -> list[dict[str, object]]:
    """One row for each vector of `clustered`; some values are missing."""
    return [
        {
            "_id": f"d{i}",
            "title": f"Title {i}" if i % 4 else "",
            "text": f"{TOPICS[i % 3]} number{i}",
            "kind": TOPICS[i % 3].split()[0] if i % 10 else None,
            "year": 1990 + i if i % 7 else None,
            "share": i / 8,
            "good": i % 2 == 0,
            "seen": f"2024-01-{i % 28 + 1:02}",
            "at": f"2024-01-{i % 28 + 1:02}T12:30:00Z",
            "big": 2**60 + i,
            "tags": TOPICS[i % 3].split()[: i % 3 + 1],
        }
        for i in range(n)
    ]


@pytest.fixture(scope="package")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("map")
    types = {"seen": "date", "at": "timestamp"}
    return Index.build(rows(), out=folder / "my.index", vectors=clustered(), column_types=types)


@pytest.fixture(scope="package")
def drawn(index: Index) -> CorpusMap:
    return map_index(index, neighbours=8, clusters=3, duplicates=0.9)
