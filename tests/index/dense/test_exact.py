"""The exact scan under several threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from sbert_search.index.dense.exact import FEW, TopK, _as_float32, scan


class Watched(np.ndarray[Any, Any]):
    """Queries that count how many products are under way."""

    running = most = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        product = ufunc is np.matmul
        Watched.running += product
        Watched.most = max(Watched.most, Watched.running)
        time.sleep(0.002 * product)
        Watched.running -= product
        plain = [np.asarray(part) if isinstance(part, Watched) else part for part in inputs]
        return getattr(ufunc, method)(*plain, **options)


def test_products_of_several_threads_take_turns() -> None:
    vectors = np.eye(64, dtype=np.float32)
    rows = np.arange(64)

    def nearest(row: int) -> int:
        top = TopK.empty(FEW + 1, 1)
        queries = np.tile(vectors[row], (FEW + 1, 1)).view(Watched)
        scan(queries, vectors, top, rows, metric="dot", max_norm=1.0)
        return int(top.rows[0, 0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(nearest, range(64))) == rows.tolist()
    assert Watched.most == 1


def test_half_precision_widens_as_astype_does() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    assert (_as_float32(halves).view(np.int32) == halves.astype(np.float32).view(np.int32)).all()
