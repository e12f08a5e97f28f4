"""Estimate the seconds of pieces, from finished pieces or from a number of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from sbert_search.analysis.variants.pieces import Part, Piece, Result

# Floating-point operations a second of one busy core in bf16, guessed as long as no pre-training
# is finished.
GUESSED_RATE = 9e10
# Time of a token by family, compared with BERT's. DistilBERT has half the layers, and its teacher's
# forward pass; ELECTRA has a generator.
RELATIVE: Mapping[str, float] = {
    "bert": 1.0,
    "roberta": 1.0,
    "albert": 1.0,
    "distilbert": 0.9,
    "electra": 1.4,
    "deberta": 2.0,
}
# Time of a measure, as a share of the time of BERT's pre-training, guessed as long as no measure
# of the same part is finished.
GUESSED: Mapping[Part, float] = {"raw": 0.1, "sts": 0.2, "pairs": 0.15, "classify": 0.15}


def operations(tokens: int, layers: int, hidden: int, inner: int, vocab: int) -> float:
    """Floating-point operations of a pre-training: 6 for each weight and token.

    The matrices of a layer have 4 h² + 2 h · inner weights. The output matrix is used for the
    masked tokens, 15 % of all.
    """
    weights = layers * (4 * hidden**2 + 2 * hidden * inner) + 0.15 * vocab * hidden
    return 6.0 * tokens * weights


def estimator(
    pieces: Sequence[Piece], found: Callable[[Piece], Result | None], operations_of_bert: float
) -> Callable[[Piece], float]:
    """Return a function that estimates the seconds of a piece.

    The estimate is the mean time of the finished pieces of the same part, scaled from their
    families to that of the piece by `RELATIVE`. Until one is finished, a measure is estimated from
    the time of BERT's pre-training by `GUESSED`, and a pre-training from the operations.
    """
    spent: dict[str, list[float]] = {}
    for piece in pieces:
        if (result := found(piece)) and result["seconds"] > 0:
            spent.setdefault(piece.part, []).append(result["seconds"] / RELATIVE[piece.family])
    bert = mean(spent.get("pretrain", [operations_of_bert / GUESSED_RATE]))

    def estimate(piece: Piece) -> float:
        known = spent.get(piece.part)
        unit = mean(known) if known else bert * GUESSED.get(piece.part, 1.0)
        return unit * RELATIVE[piece.family]

    return estimate
