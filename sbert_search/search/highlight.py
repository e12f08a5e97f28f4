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

SENTENCES = 16  # most sentences of one passage that are embedded
CHARS = 1 << 17  # characters from the start of a passage that are split into sentences
# Most tokens of the sentences embedded for one query. The first sentence of each passage is
# embedded even if it exceeds this number.
TOKENS = 512

_WORD = re.compile(r"\w+")


def best_sentences(
    text: str, query: NDArray[np.float32], passages: Sequence[str], embedder: TextEmbedder
) -> list[str]:
    """Pick from each passage the sentence nearest to the query, in one call of the embedder.

    Only the sentences that share the rarest words with the query are embedded: at least one of
    each passage, and more while all sentences together stay within `TOKENS`.

    Args:
        text: The query.
        query: Vector of the query, float32 (dim,).
        passages: The passages; a passage without text gives "".
        embedder: The embedder that made the query's vector.

    Returns:
        One sentence for each passage. Of equally near sentences, it is the one that shares the
        rarest words with the query.
    """
    # docs/decisions.md: The best sentence of a hit is chosen from a few.
    groups = _by_shared_words(
        text, [split_sentences(p[:CHARS], wrapped=True) or [""] for p in passages]
    )
    tokens = embedder.tokenize([s for group in groups for s in group], task="document")
    starts = np.cumsum([0, *map(len, groups)])
    rows = np.array(list(_within_budget(starts, tokens.lengths)), dtype=np.int64)
    vectors = normalised(embedder.encode_tokens(tokens.take(rows)))
    similarities = np.full(len(tokens), -np.inf, dtype=np.float32)
    similarities[rows] = vectors @ query
    by_passage = np.split(similarities, starts[1:-1])
    return [group[int(np.argmax(part))] for group, part in zip(groups, by_passage, strict=True)]


def _by_shared_words(text: str, groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """Order the sentences of each passage by the words that they share with a query.

    The sentence with the highest sum of the inverse document frequencies of these words is first.
    """
    query_words = _words(text)
    counts = Counter(word for group in groups for s in group for word in query_words & _words(s))
    total = sum(map(len, groups))
    idf = {word: math.log(1 + total / count) for word, count in counts.items()}

    def shared(sentence: str) -> float:
        return math.fsum(idf[word] for word in query_words & _words(sentence))

    return [sorted(group, key=shared, reverse=True)[:SENTENCES] for group in groups]


def _within_budget(starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> Iterator[int]:
    """Yield sentence numbers: the first of every passage, then the second of each, and so on.

    After the first sentences, it stops before the sentence that would bring the sum of tokens above
    `TOKENS`.

    Args:
        starts: Number of the first sentence of each passage, and the number of all sentences.
        lengths: Tokens of each sentence.
    """
    used = 0
    for rank in range(int(np.diff(starts).max())):
        for row in (starts[:-1] + rank)[rank < np.diff(starts)].tolist():
            used += int(lengths[row])
            if rank and used > TOKENS:
                return
            yield row


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
