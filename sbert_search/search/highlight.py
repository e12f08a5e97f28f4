"""Choosing the sentence of each passage that best answers a query."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import TextEmbedder
from sbert_search.index.lexical.analyzer import STOP_WORD, all_words, folded
from sbert_search.index.norms import normalised
from sbert_search.index.snapshot import Snapshot
from sbert_search.text.tokens.sentences import split_sentences

SENTENCES = 4  # most sentences of one passage that are embedded
CHARS = 1 << 17  # characters from the start of a passage that are split into sentences
TOKENS = 128  # most tokens of the sentences that are embedded for one query

Shared = Callable[[str], float]
"""Returns the sum of the inverse document frequencies of the words that a text shares with a query.
"""


def best_sentences(
    snapshot: Snapshot,
    query: str,
    passages: Sequence[str],
    vector: NDArray[np.float32] | None = None,
    embedder: Callable[[], TextEmbedder] | None = None,
) -> list[str]:
    """Pick from each passage the sentence that best answers a query.

    The score of a sentence is the sum of the inverse document frequencies of the words that it
    shares with the query. If no sentence of a passage shares a word, the sentence whose vector is
    nearest to the vector of the query is picked from the first `SENTENCES` sentences.

    Args:
        snapshot: The state of the index that has the passages.
        query: The query.
        passages: The passages; a passage without text gives "".
        vector: Vector of the query, float32 (dim,); None: no sentence is embedded.
        embedder: Returns the embedder that made the vector; it is called only if it is needed. At
            most `TOKENS` tokens of all passages are embedded, in one call of the embedder.

    Returns:
        One sentence for each passage; the first of equally good ones.
    """
    # See "The best sentence of a hit is chosen by words" in docs/decisions.md.
    groups = [split_sentences(p[:CHARS], wrapped=True) or [""] for p in passages]
    shared = _by_index(snapshot, query) if snapshot.settings.lexical else _by_page(query, groups)
    scores = [list(map(shared, group)) for group in groups]
    best = [group[s.index(max(s))] for group, s in zip(groups, scores, strict=True)]
    undecided = [i for i, s in enumerate(scores) if len(s) > 1 and not max(s)]
    if undecided and vector is not None and embedder is not None:
        first = [groups[i][:SENTENCES] for i in undecided]
        for i, sentence in zip(undecided, _nearest(first, vector, embedder()), strict=True):
            best[i] = sentence
    return best


def _by_index(snapshot: Snapshot, query: str) -> Shared:
    """Make the function `Shared` for a query, with document frequencies from the index.

    Words are shared if they have the same stem. Stop words are ignored.
    """
    lexical = snapshot.lexical
    terms = set(lexical.reader.terms(query).tolist()) - {STOP_WORD}
    counts = {term: lexical.postings_of(term)[1] for term in terms}
    idf = {term: math.log(1 + snapshot.n_docs / (count + 0.5)) for term, count in counts.items()}

    def shared(text: str) -> float:
        found = lexical.reader.terms(text).tolist()
        return math.fsum(idf[term] for term in terms.intersection(found))

    return shared


def _by_page(query: str, groups: Sequence[Sequence[str]]) -> Shared:
    """Make the function `Shared` for a query, with frequencies from the sentences of the passages.

    This is for an index without lexical data, which has no document frequencies. Words are not
    stemmed, and stop words count too.
    """
    words = _words(query)
    counts = Counter(word for group in groups for text in group for word in words & _words(text))
    total = sum(map(len, groups))
    idf = {word: math.log(1 + total / count) for word, count in counts.items()}
    return lambda text: math.fsum(idf[word] for word in words & _words(text))


def _nearest(
    groups: Sequence[Sequence[str]], query: NDArray[np.float32], embedder: TextEmbedder
) -> list[str]:
    """Return the sentence of each group that is nearest to a query.

    Only sentences within the budget of `TOKENS` tokens are compared.
    """
    tokens = embedder.tokenize([text for group in groups for text in group], task="document")
    starts = np.cumsum([0, *map(len, groups)])
    rows = np.array(list(_within_budget(starts, tokens.lengths)), dtype=np.int64)
    similarities = np.full(len(tokens), -np.inf, dtype=np.float32)
    if len(rows):
        similarities[rows] = normalised(embedder.encode_tokens(tokens.take(rows))) @ query
    parts = np.split(similarities, starts[1:-1])
    return [group[int(np.argmax(part))] for group, part in zip(groups, parts, strict=True)]


def _within_budget(starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> Iterator[int]:
    """Yield indices of sentences: the first of each passage, then the second of each, and so on.

    The function stops before the sentence that would bring the sum of tokens above `TOKENS`.

    Args:
        starts: Index of the first sentence of each passage, then the number of all sentences.
        lengths: Number of tokens of each sentence.
    """
    used = 0
    for rank in range(int(np.diff(starts).max())):
        for row in (starts[:-1] + rank)[rank < np.diff(starts)].tolist():
            used += int(lengths[row])
            if used > TOKENS:
                return
            yield row


def _words(text: str) -> set[str]:
    return set(all_words(folded(text)))
