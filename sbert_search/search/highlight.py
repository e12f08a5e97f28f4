"""Choosing the sentence of each passage that best answers a query."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.index.norms import normalised
from sbert_search.tokens.sentences import split_sentences

SENTENCES = 4  # most sentences of one passage that are embedded
CHARS = 1 << 17  # characters from the start of a passage that are split into sentences
TOKENS = 128  # most tokens of the sentences that are embedded for one query
# A sentence competes with the one that shares the rarest words if the inverse document frequencies
# of its own shared words add up to this part of the other's.
CLOSE = 0.85

_WORD = re.compile(r"\w+")


def best_sentences(
    text: str, query: NDArray[np.float32], passages: Sequence[str], embedder: TextEmbedder
) -> list[str]:
    """Pick from each passage the sentence that best answers a query.

    It is the sentence that shares the rarest words with the query. Where several sentences are
    close by this measure, the nearest of them to the query is chosen; they are embedded in one call
    of the embedder, up to `TOKENS` tokens for all passages.

    Args:
        text: The query.
        query: Vector of the query, float32 (dim,).
        passages: The passages; a passage without text gives "".
        embedder: The embedder that made the query's vector.

    Returns:
        One sentence for each passage. Of equally near sentences, it is the one that shares the
        rarest words with the query.
    """
    # docs/decisions.md: The best sentence of a hit is chosen by words first.
    groups = _close_by_words(
        text, [split_sentences(p[:CHARS], wrapped=True) or [""] for p in passages]
    )
    open_groups = [group for group in groups if len(group) > 1]
    if not open_groups:
        return [group[0] for group in groups]
    tokens = embedder.tokenize([s for group in open_groups for s in group], task="document")
    starts = np.cumsum([0, *map(len, open_groups)])
    rows = np.array(list(_within_budget(starts, tokens.lengths)), dtype=np.int64)
    similarities = np.full(len(tokens), -np.inf, dtype=np.float32)
    if len(rows):
        similarities[rows] = normalised(embedder.encode_tokens(tokens.take(rows))) @ query
    nearest = iter([int(np.argmax(part)) for part in np.split(similarities, starts[1:-1])])
    return [group[next(nearest) if len(group) > 1 else 0] for group in groups]


def _close_by_words(text: str, groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """Find the sentences of each passage that share the rarest words with a query.

    Returns:
        For each passage, the sentence with the highest sum of the inverse document frequencies of
        the shared words, and after it those with at least `CLOSE` times this sum.
    """
    query_words = _words(text)
    counts = Counter(word for group in groups for s in group for word in query_words & _words(s))
    total = sum(map(len, groups))
    idf = {word: math.log(1 + total / count) for word, count in counts.items()}

    def shared(sentence: str) -> float:
        return math.fsum(idf[word] for word in query_words & _words(sentence))

    return [_close(group, [shared(sentence) for sentence in group]) for group in groups]


def _close(sentences: Sequence[str], shared: Sequence[float]) -> list[str]:
    least = CLOSE * max(shared)
    order = sorted(range(len(sentences)), key=shared.__getitem__, reverse=True)
    return [sentences[i] for i in order if shared[i] >= least][:SENTENCES]


def _within_budget(starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> Iterator[int]:
    """Yield sentence numbers: the first of every passage, then the second of each, and so on.

    It stops before the sentence that would bring the sum of tokens above `TOKENS`.

    Args:
        starts: Number of the first sentence of each passage, and the number of all sentences.
        lengths: Tokens of each sentence.
    """
    used = 0
    for rank in range(int(np.diff(starts).max())):
        for row in (starts[:-1] + rank)[rank < np.diff(starts)].tolist():
            used += int(lengths[row])
            if used > TOKENS:
                return
            yield row


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
