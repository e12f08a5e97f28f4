"""Measure which batch size in tokens is fastest, once for each model shape on each machine.

A measurement takes as long as about 14 batches. It is made after 450 batches, so that it adds only
3 % to the running time. Only embedders that are opened later use the result. The batch size of an
open embedder never changes, because another batch size changes the rounding of its vectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.cache import cached_or_computed, cached_value
from sbert_search.base.progress import detail
from sbert_search.text.tokens.batching import token_batches

ROUNDS = 2  # number of measurements of each budget; the fastest of them counts
WORTH = 450  # batches computed before a measurement, which then takes 3 % of the time so far
GAIN = 1.03  # a budget replaces the default only if it is faster by this factor

Work = Callable[[NDArray[np.int64]], object]


class BudgetSearch:
    """Finds the fastest token budget among half the default, the default and twice the default.

    Another budget changes the vectors only by rounding errors. ``key`` identifies the shape of the
    model and the machine.
    """

    def __init__(self, default: int, key: object) -> None:
        self._budgets, self._key = (default // 2, default, 2 * default), [key, default]
        known = cached_value("budget", self._key, self._is_budget)
        self.budget = default if known is None else int(known)  # never changes
        self._is_over = known is not None
        self._seen = 0

    def see(self, lengths: NDArray[np.int32], work: Work) -> None:
        """Count the tokens of texts before they are computed; measure once, after `WORTH` batches.

        The measurement uses a sample of the texts. It waits for a call whose texts fill a batch of
        the largest budget. ``work`` computes the texts at some indices as one batch; it raises
        MemoryError if the batch is too large.
        """
        tokens = int(lengths.sum())
        default = self._budgets[1]
        if not self._is_over and self._seen >= WORTH * default and tokens >= 2 * default:
            self._is_over = True
            rows = _sample(lengths, self._budgets[-1])
            cached_or_computed(
                "budget",
                self._key,
                lambda: _fastest(self._budgets, lambda b: _seconds(lengths, rows, b, work)),
                self._is_budget,
            )
        self._seen += tokens

    def _is_budget(self, value: object) -> bool:
        return value in self._budgets


def _fastest(budgets: tuple[int, int, int], seconds: Callable[[int], float]) -> int:
    """Return the fastest budget, or the default (the second) if none is `GAIN` times faster."""
    best = dict.fromkeys(budgets, float("inf"))
    seconds(budgets[0])  # warms up
    # The budgets take turns, so that a change of the machine's speed affects all equally.
    for _ in range(ROUNDS):
        best = {budget: min(before, seconds(budget)) for budget, before in best.items()}
    default = budgets[1]
    fastest = min(best, key=best.__getitem__)
    if best[fastest] * GAIN >= best[default]:
        fastest = default
    sizes = ", ".join(f"{budget:,}" for budget in budgets)
    detail(f"Batches of {fastest:,} tokens are the fastest of {sizes}; later runs use them.")
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
    """Pick every nth text by length, so that they have about ``tokens`` tokens together."""
    order = np.argsort(lengths, kind="stable")
    count = max(1, int(tokens / lengths.mean()))
    return order[:: max(1, len(order) // count)]
