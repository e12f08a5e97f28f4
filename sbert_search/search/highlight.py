"""The sentence of a passage that a reader should see first."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.tokens.sentences import split_sentences

SENTENCES = 16  # of a passage that are looked at
CHARS = 1 << 17  # of a passage that are cut into sentences
TOKENS = 512  # of all sentences embedded for one answer, beyond the first of each passage

_WORD = re.compile(r"\w+")


def best_sentences(
    text: str, query: NDArray[np.float32], passages: Sequence[str], embedder: TextEmbedder
) -> list[str]:
    """Pick from each passage the sentence nearest to the query, in one call of the embedder.

    Only the sentences that share the rarest words with the query are embedded, as many of each
    passage as a budget of `TOKENS` for all of them allows and at least one.

    Args:
        text: What is asked.
        query: Its vector, float32 (dim,).
        passages: What to pick from; a passage without any text gives "".
        embedder: The one that made the query's vector.

    Returns:
        One sentence for each passage; of equals the one that shares more.
    """
    groups = _by_shared_words(
        text, [split_sentences(p[:CHARS], wrapped=True) or [""] for p in passages]
    )
    tokens = embedder.tokenize([s for group in groups for s in group], task="document")
    starts = np.cumsum([0, *map(len, groups)])
    rows = np.array(list(_within_budget(starts, tokens.lengths)), dtype=np.int64)
    vectors = embedder.encode_tokens(tokens.take(rows))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    closeness = np.full(len(tokens), -np.inf, dtype=np.float32)
    closeness[rows] = vectors @ query
    near = np.split(closeness, starts[1:-1])
    return [group[int(np.argmax(part))] for group, part in zip(groups, near, strict=True)]


def _by_shared_words(text: str, groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """Order the sentences of each passage by the rarity of the query's words in them."""
    asked = _words(text)
    holders = Counter(word for group in groups for s in group for word in asked & _words(s))
    total = sum(map(len, groups))
    rarity = {word: math.log(1 + total / count) for word, count in holders.items()}

    def shared(sentence: str) -> float:
        return math.fsum(rarity[word] for word in asked & _words(sentence))

    return [sorted(group, key=shared, reverse=True)[:SENTENCES] for group in groups]


def _within_budget(starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> Iterator[int]:
    """Yield the first sentence of every passage, then the second of each, until tokens run out."""
    used = 0
    for place in range(int(np.diff(starts).max())):
        for row in (starts[:-1] + place)[place < np.diff(starts)].tolist():
            used += int(lengths[row])
            if place and used > TOKENS:
                return
            yield row


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
