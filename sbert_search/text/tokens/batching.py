"""Group texts of similar length into batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TOKENS_AT_ONCE = 8192  # tokens in one forward pass without gradients


def token_batches(
    lengths: NDArray[np.integer] | Sequence[int], budget: int, *, most: int | None = None
) -> list[NDArray[np.int64]]:
    """Sort texts by length, longest first, and cut them into batches of at most ``budget`` tokens.

    Texts are concatenated without padding, so a batch costs its tokens, and attention processes
    texts of equal length together. A text longer than the budget is a batch by itself. Returns the
    indices of the texts of each batch, int64; the sort is stable.
    """
    for name, limit in (("budget", budget), ("most", most)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name} is {limit}; it must be at least 1.")
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    batches, start, used = [], 0, 0
    for index, size in enumerate(sizes[order].tolist()):
        if index > start and (used + size > budget or index - start == most):
            batches.append(order[start:index])
            start, used = index, 0
        used += size
    if start < len(order):
        batches.append(order[start:])
    return batches
