"""Which texts go through a model together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def token_batches(
    lengths: NDArray[np.integer] | Sequence[int], budget: int, *, most: int | None = None
) -> list[NDArray[np.int64]]:
    """Sort texts by length, longest first, and cut the order into batches of few enough tokens.

    Packed batches hold no padding, so what a batch costs is its tokens, not its rows. Sorting keeps
    attention in groups of like length. Equal lengths keep their order: the same lengths always give
    the same batches.

    Args:
        lengths: Tokens of each text, (n,).
        budget: Most tokens of a batch; a single longer text is a batch of its own.

        most: Most rows of a batch; None: as many as the budget allows.

    Returns:
        Rows of each batch, int64; together each row once.

    Raises:
        ValueError: ``budget`` or ``most`` is below 1.
    """
    if budget < 1 or (most is not None and most < 1):
        raise ValueError(f"At most {budget} tokens and {most} rows a batch: both must be above 0.")
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    batches, start, used = [], 0, 0
    for place, size in enumerate(sizes[order].tolist()):
        if used and (used + size > budget or place - start == most):
            batches.append(order[start:place])
            start, used = place, 0
        used += size
    if start < len(order):
        batches.append(order[start:])
    return batches
