"""The exact scan under several threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from sbert_search.index.scan import FEW, TopK, scan


class Watched(np.ndarray[Any, Any]):
    """Queries that count how many products are under way."""

    running = most = 0

    def __matmul__(self, other: Any) -> Any:
        Watched.running += 1
        Watched.most = max(Watched.most, Watched.running)
        time.sleep(0.002)
        Watched.running -= 1
        return np.asarray(self) @ other


def test_products_of_several_threads_take_turns() -> None:
    vectors = np.eye(64, dtype=np.float32)
    rows = np.arange(64)

    def nearest(row: int) -> int:
        top = TopK(FEW + 1, 1)
        queries = np.tile(vectors[row], (FEW + 1, 1)).view(Watched)
        scan(queries, vectors, top, rows, metric="dot", max_norm=1.0)
        return int(top.rows[0, 0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(nearest, range(64))) == rows.tolist()
    assert Watched.most == 1
