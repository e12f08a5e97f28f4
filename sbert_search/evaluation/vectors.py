"""Embed texts for an evaluation, in which vectors that are not finite would count as wrong."""

from __future__ import annotations

import numpy as np

from sbert_search.embed.protocol import TextEmbedder, TokenizedTexts, Vectors
from sbert_search.errors import EvaluationError


def encode_finite(embedder: TextEmbedder, tokens: TokenizedTexts) -> Vectors:
    """Return the vectors of tokenised texts, float32 (n, dim).

    Raises:
        EvaluationError: A vector is not finite.
    """
    vectors = embedder.encode_tokens(tokens)
    finite = np.array([np.isfinite(vector).all() for vector in vectors])
    if not finite.all():
        first = tokens.texts[int(finite.argmin())]
        raise EvaluationError(
            f"The model has no finite vector for {int((~finite).sum()):,} of {len(finite):,} "
            f"texts, the first is {first[:80]!r}; check the model, or use --precision fp32."
        )
    return vectors
