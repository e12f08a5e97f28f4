"""Group texts of similar length into batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TOKENS_AT_ONCE = 8192  # tokens in one forward pass without gradients


def token_batches(
    lengths: NDArray[np.integer] | Sequence[int], budget: int, *, most: int | None = None
) -> list[NDArray[np.int64]]:
    """Sort texts by length, longest first, and split them into batches of limited size.

    The texts of a batch are concatenated without padding, so the cost of a batch depends on its
    number of tokens, not of texts. Sorting puts texts of similar length into a batch, and attention
    processes those of equal length together. The sort is stable: the same lengths always give the
    same batches.

    Args:
        lengths: Number of tokens of each text, (n,).
        budget: Maximum number of tokens in a batch; a longer text is a batch by itself.
        most: Maximum number of texts in a batch; None: no limit.

    Returns:
        Indices of the texts of each batch, int64; each text is in one batch.

    Raises:
        ValueError: ``budget`` or ``most`` is below 1.
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
