"""The sentence of a passage that a reader should see first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.tokens.sentences import split_sentences


def best_sentences(
    query: NDArray[np.float32], passages: Sequence[str], embedder: TextEmbedder
) -> list[str]:
    """Pick from each passage the sentence nearest to the query, in one call of the embedder.

    Args:
        query: Float32 (dim,).
        passages: What to pick from; a passage without any text gives "".
        embedder: The one that made the query's vector.

    Returns:
        One sentence for each passage; the first of equals.
    """
    cut = [split_sentences(passage, wrapped=True) or [""] for passage in passages]
    vectors = embedder.encode_document([sentence for group in cut for sentence in group])
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    closeness = np.split(vectors @ query, np.cumsum([len(group) for group in cut])[:-1])
    return [group[int(np.argmax(near))] for group, near in zip(cut, closeness, strict=True)]
