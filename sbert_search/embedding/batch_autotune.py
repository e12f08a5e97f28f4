"""How many tokens one step of a model should have: measured, once a model on a machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbert_search.runtime.cache import remembered
from sbert_search.runtime.progress import note
from sbert_search.tokens.batching import token_batches

ROUNDS = 2
GAIN = 1.03  # how much faster than the default another budget must be

Work = Callable[[NDArray[np.int64]], object]


def find_budget(default: int, lengths: NDArray[np.int32], work: Work, key: Any) -> int:
    """Find the fastest of half the default, the default and twice of it.

    Another budget puts texts in other company, which moves vectors by no more than rounding does.
    What was found is kept in the user's cache, so that a build that goes on after a kill makes the
    batches that it would have made.

    Args:
        default: Tokens of one step, at least 2.
        lengths: Tokens of texts like those to come, (n,).
        work: Computes some of these texts; raises MemoryError when they are too many.
        key: What the answer depends on, as JSON has it.

    Returns:
        Tokens of one step; the default when no other one is 3 % faster.
    """
    budgets = (default // 2, default, 2 * default)

    def measure() -> int:
        rows = _sample(lengths, budgets[-1])
        return _fastest(budgets, lambda budget: _seconds(lengths, rows, budget, work))

    return int(remembered("budget", [key, default], measure, lambda found: found in budgets))


def _fastest(budgets: tuple[int, int, int], seconds: Callable[[int], float]) -> int:
    """Measure in turn, so that a drift of the machine meets all alike."""
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
    """Pick texts of every length, in the proportion in which they come, up to so many tokens."""
    order = np.argsort(lengths, kind="stable")
    count = max(1, int(tokens / lengths.mean()))
    return order[:: max(1, len(order) // count)]
