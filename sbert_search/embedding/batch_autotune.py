"""Measure, once for each model and machine, which batch size in tokens is fastest."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sbert_search.runtime.cache import remembered
from sbert_search.runtime.progress import note
from sbert_search.tokens.batching import token_batches

ROUNDS = 2  # measurements of each budget, of which the fastest counts
GAIN = 1.03  # factor by which a budget must be faster than the default budget

Work = Callable[[NDArray[np.int64]], object]


def find_budget(default: int, lengths: NDArray[np.int32], work: Work, key: object) -> int:
    """Find the fastest token budget among half the default, the default and twice the default.

    A token budget is the maximum number of tokens in a batch. It decides which texts share a batch;
    another budget changes their vectors by rounding only. The result is stored in the user's cache,
    so that the build of an index makes the same batches after it is resumed as before.

    Args:
        default: Default budget, at least 2.
        lengths: Tokens of typical texts, (n,).
        work: Computes the texts at some indices into ``lengths``; raises MemoryError if the batch
            is too large.
        key: JSON value of everything that the result depends on: model, device and machine.

    Returns:
        The fastest budget; the default if no other budget is 3 % faster.
    """
    budgets = (default // 2, default, 2 * default)

    def measure() -> int:
        rows = _sample(lengths, budgets[-1])
        return _fastest(budgets, lambda budget: _seconds(lengths, rows, budget, work))

    return int(remembered("budget", [key, default], measure, lambda value: value in budgets))


def _fastest(budgets: tuple[int, int, int], seconds: Callable[[int], float]) -> int:
    """Return the fastest budget, or the default (the second) if no budget is `GAIN` times faster.

    The budgets are measured in turns, so that a drift of the machine's speed affects all equally.
    """
    best = dict.fromkeys(budgets, float("inf"))
    seconds(budgets[0])  # warms up
    for _ in range(ROUNDS):
        best = {budget: min(before, seconds(budget)) for budget, before in best.items()}
    default = budgets[1]
    fastest = min(best, key=best.__getitem__)
    if best[fastest] * GAIN >= best[default]:
        fastest = default
    note(f"Batches of {fastest:,} tokens, the fastest of " + ", ".join(f"{b:,}" for b in budgets))
    return fastest


def _seconds(lengths: NDArray[np.int32], rows: NDArray[np.int64], budget: int, work: Work) -> float:
    """Measure how long the texts at ``rows`` take; infinity if memory runs out."""
    start = time.perf_counter()
    try:
        for part in token_batches(lengths[rows], budget):
            work(rows[part])
    except MemoryError:
        return float("inf")
    return time.perf_counter() - start


def _sample(lengths: NDArray[np.int32], tokens: int) -> NDArray[np.int64]:
    """Pick texts with about ``tokens`` tokens together.

    They are every nth text in the order of length, so that the distribution of lengths is kept.
    """
    order = np.argsort(lengths, kind="stable")
    count = max(1, int(tokens / lengths.mean()))
    return order[:: max(1, len(order) // count)]
