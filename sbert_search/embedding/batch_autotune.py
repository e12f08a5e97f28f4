"""Measure which batch size in tokens is fastest, once for each model and machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sbert_search.runtime.cache import remembered
from sbert_search.runtime.progress import note
from sbert_search.tokens.batching import token_batches

ROUNDS = 2
GAIN = 1.03  # factor by which another budget must be faster than the default

Work = Callable[[NDArray[np.int64]], object]


def find_budget(default: int, lengths: NDArray[np.int32], work: Work, key: object) -> int:
    """Find the fastest of half the default budget, the default, and twice the default.

    Another budget changes which texts share a batch; vectors differ by rounding only. The result is
    stored in the user's cache, so a resumed build makes the same batches as an uninterrupted one.

    Args:
        default: Default budget: tokens of one batch, at least 2.
        lengths: Tokens of typical texts, (n,).
        work: Computes some of these texts; raises MemoryError if the batch is too large.
        key: JSON value that names what the result depends on.

    Returns:
        Tokens of one batch; the default if no other budget is 3 % faster.
    """
    budgets = (default // 2, default, 2 * default)

    def measure() -> int:
        rows = _sample(lengths, budgets[-1])
        return _fastest(budgets, lambda budget: _seconds(lengths, rows, budget, work))

    return int(remembered("budget", [key, default], measure, lambda value: value in budgets))


def _fastest(budgets: tuple[int, int, int], seconds: Callable[[int], float]) -> int:
    """Measure the budgets in turns, so that a drift of the machine's speed affects all equally."""
    best = dict.fromkeys(budgets, float("inf"))
    seconds(budgets[0])  # warms up
    for _ in range(ROUNDS):
        best = {budget: min(before, seconds(budget)) for budget, before in best.items()}
    default = budgets[1]
    fastest = min(best, key=best.__getitem__)
    if best[fastest] * GAIN >= best[default]:
        fastest = default
    note(f"Steps of {fastest:,} tokens, the fastest of " + ", ".join(f"{b:,}" for b in budgets))
    return fastest


def _seconds(lengths: NDArray[np.int32], rows: NDArray[np.int64], budget: int, work: Work) -> float:
    start = time.perf_counter()
    try:
        for part in token_batches(lengths[rows], budget):
            work(rows[part])
    except MemoryError:
        return float("inf")
    return time.perf_counter() - start


def _sample(lengths: NDArray[np.int32], tokens: int) -> NDArray[np.int64]:
    """Pick every nth text by length, so that lengths keep their distribution, up to ``tokens``."""
    order = np.argsort(lengths, kind="stable")
    count = max(1, int(tokens / lengths.mean()))
    return order[:: max(1, len(order) // count)]
