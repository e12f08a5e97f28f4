"""The errors of an STS run: pairs whose predicted rank is far from their gold rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from sbert_search.evaluate.metrics.correlation import ranks
from sbert_search.lab.errors.items import Analysed
from sbert_search.lab.errors.record import ErrorItem
from sbert_search.lab.errors.words import WordReader, overlap
from sbert_search.records import TextPair

RANK_ERROR = "rank error"


def analyze_pairs(
    pairs: Sequence[tuple[str, TextPair]],
    predicted: Sequence[float],
    gold: Sequence[float],
    *,
    reader: WordReader,
    worst: int,
) -> Analysed:
    """Find the pairs with the largest rank errors, and compute the features of all pairs.

    The rank error of a pair is the distance between its predicted and its gold rank, divided by
    the number of pairs.

    Args:
        pairs: Number of each pair in its file, from 0, and the pair.
        predicted: Predicted similarity of each pair.
        gold: Gold score of each pair.
        reader: Splits texts into words.
        worst: Number of worst pairs to describe.
    """
    n = len(pairs)
    places = [ranks(scores) for scores in (predicted, gold)]
    errors: list[float] = (np.abs(places[0] - places[1]) / n).tolist()
    terms = [(reader.terms(pair.text1), reader.terms(pair.text2)) for _, pair in pairs]
    lengths = [(reader.length(pair.text1), reader.length(pair.text2)) for _, pair in pairs]
    frequency = Counter(term for both in terms for side in both for term in side)
    features: list[dict[str, float | None]] = [
        {
            "words of both texts": float(sum(words)),
            "difference of the lengths": float(abs(words[0] - words[1])),
            "share of words in common": overlap(*both),
            "texts with the rarest word": min(
                (float(frequency[term]) for term in both[0] | both[1]), default=None
            ),
            "gold score": float(score),
        }
        for both, words, score in zip(terms, lengths, gold, strict=True)
    ]
    order = sorted(range(n), key=lambda at: (-errors[at], at))[:worst]
    items = [
        ErrorItem(
            item=pairs[at][0],
            value=errors[at],
            texts=(pairs[at][1].text1, pairs[at][1].text2),
            words=lengths[at],
            expected=f"gold {gold[at]:.4g}, rank {_shown(places[1][at])} of {n:,}",
            came=f"score {predicted[at]:.4f}, rank {_shown(places[0][at])} of {n:,}",
            shared=reader.shared(pairs[at][1].text1, pairs[at][1].text2),
            forms=reader.shared(pairs[at][1].text2, pairs[at][1].text1),
            features=features[at],
        )
        for at in order
    ]
    return Analysed(errors, features, items)


def _shown(rank: float) -> str:
    """Format a rank, which may be a fraction: equal scores share the mean of their ranks."""
    return f"{rank:,.10g}"
