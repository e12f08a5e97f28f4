"""Choose the best spans of a text from logits of starts and ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Span(NamedTuple):
    """The tokens from index ``first`` to index ``last``.

    The score is the start logit of the first token plus the end logit of the last token.
    """

    score: float
    first: int
    last: int


def best_spans(
    starts: NDArray[np.float32], ends: NDArray[np.float32], *, n: int = 20, max_tokens: int = 30
) -> list[Span]:
    """Return the spans with the highest scores, best first.

    Of spans with equal scores, the span that begins earlier comes first.

    Args:
        starts: Logit of each token as the first of the span, float (tokens,).
        ends: Logit of each token as the last of the span, float (tokens,).
        n: Maximum number of spans.
        max_tokens: Maximum number of tokens of a span.
    """
    length = len(starts)
    if not length:
        return []
    scores = starts[:, None] + ends[None, :]
    gap = np.arange(length)[None, :] - np.arange(length)[:, None]
    scores = np.where((gap >= 0) & (gap < max_tokens), scores, -np.inf).ravel()
    lowest = -np.inf if n >= len(scores) else np.partition(scores, -n)[-n]
    order = np.flatnonzero(scores >= lowest)  # more than n spans if several scores equal `lowest`
    order = order[np.argsort(-scores[order], kind="stable")][:n]
    return [
        Span(float(scores[place]), *divmod(int(place), length))
        for place in order
        if np.isfinite(scores[place])
    ]
