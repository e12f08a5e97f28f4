"""Estimate the time of the pieces of a comparison, such as a pre-training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from sbert_search.lab.variants.pieces import Part, Piece, Result

# Guess of the floating-point operations per second of one busy core in bf16. It is used until a
# pre-training is finished.
GUESSED_RATE = 9e10
# Training time per token of each family, relative to BERT. DistilBERT has half the layers but adds
# the forward pass of its teacher. ELECTRA adds a generator.
RELATIVE: Mapping[str, float] = {
    "bert": 1.0,
    "roberta": 1.0,
    "albert": 1.0,
    "distilbert": 0.9,
    "electra": 1.4,
    "deberta": 2.0,
}
# Guess of the time of a measurement, as a share of the time of BERT's pre-training. The guess is
# used until a measurement of the same kind is finished.
GUESSED: Mapping[Part, float] = {"raw": 0.1, "sts": 0.2, "pairs": 0.15, "classify": 0.15}


def operations(tokens: int, layers: int, hidden: int, inner: int, vocab: int) -> float:
    """Floating-point operations of a pre-training: 6 for each weight and token.

    The matrices of a layer have 4 h² + 2 h · inner weights, where h is ``hidden``. The output
    matrix is used only for the masked tokens, which are 15 % of all tokens.
    """
    weights = layers * (4 * hidden**2 + 2 * hidden * inner) + 0.15 * vocab * hidden
    return 6.0 * tokens * weights


def estimator(
    pieces: Sequence[Piece], found: Callable[[Piece], Result | None], operations_of_bert: float
) -> Callable[[Piece], float]:
    """Return a function that estimates the seconds of a piece.

    The estimate is the mean time of the finished pieces of the same kind, scaled from their
    families to the family of the piece by `RELATIVE`. If no piece of this kind is finished, a
    measurement is estimated from the time of BERT's pre-training by `GUESSED`, and a pre-training
    from ``operations_of_bert``.
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
