"""Check on eight texts that a device computes nearly the same output as the CPU in fp32."""

from __future__ import annotations

import numpy as np

from sbert_search.embedding.protocol import Vectors
from sbert_search.errors import ModelError

# Lowest accepted cosine of a vector in int8 with the vector of the same text in another precision.
# For 5,700 sentences and one model, the mean cosine was 0.996 and the lowest 0.981. With other
# weights, another pooling or a wrong calibration, the cosine is far below 0.98.
INT8_COSINE = 0.98

SELF_CHECK_TEXTS = (
    "a",
    "What is the capital of France?",
    "Paris is the capital and largest city of France.",
    "The quick brown fox jumps over the lazy dog.",
    "Ein Zug fährt um 7:45 Uhr nach Zürich; 東京 is further away.",
    "def add(x, y):\n    return x + y  # no overflow: ints are unbounded",
    "Vaccines train the immune system to recognise a pathogen before an infection. " * 4,
    "In 1998, 3.5% of the 12,000 samples were lost (see table 2), and nobody knew why. " * 16,
)


def check_vectors(reference: Vectors, vectors: Vectors, *, min_cosine: float, where: str) -> None:
    """Compare vectors of the self-check texts with those of the CPU in fp32.

    Args:
        reference: Float32 (8, dim), computed on the CPU in fp32.
        vectors: Vectors of the same texts from the engine that is checked, float32 (8, dim).
        min_cosine: Minimum cosine similarity of the two vectors of each text.
        where: Engine, device, precision and kind of batch, for the message.

    Raises:
        ModelError: A vector is not finite, or its cosine similarity is too low.
    """
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise ModelError(
            f"{where} gives a vector that is not finite for {SELF_CHECK_TEXTS[row][:40]!r}; use "
            "--device cpu or --precision fp32."
        )
    worst, text = _least_cosine(reference, vectors)
    if not worst >= min_cosine:  # this form also refuses NaN
        raise ModelError(
            f"{where} gives wrong vectors: the cosine similarity to the CPU in fp32 is {worst:.6f} "
            f"for {text[:40]!r}, and at least {min_cosine} is needed; use --device cpu or "
            "--precision fp32."
        )


def check_alone(together: Vectors, alone: Vectors, *, min_cosine: float, remedy: str) -> None:
    """Refuse a model whose vector of a text depends on the other texts of the batch.

    Args:
        together: Vectors of the self-check texts, computed in one batch, float32 (8, dim).
        alone: Their vectors from the same model, device and precision, each computed alone.
        min_cosine: Minimum cosine similarity of the two vectors of each text.
        remedy: What the user can do, for the message.

    Raises:
        ModelError: A cosine similarity is too low.
    """
    worst, text = _least_cosine(together, alone)
    if worst < min_cosine:
        raise ModelError(
            f"The vectors of this model depend on the batch: for {text[:40]!r}, the cosine "
            f"similarity of the vectors alone and beside other texts is {worst:.6f}, and at least "
            f"{min_cosine} is needed. {remedy}"
        )


def _least_cosine(first: Vectors, second: Vectors) -> tuple[float, str]:
    """Return the lowest cosine similarity of the vectors of a text, and this text."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)
    return float(cosines.min()), SELF_CHECK_TEXTS[int(cosines.argmin())]


def check_scores(reference: Vectors, scores: Vectors, *, tolerance: float, where: str) -> None:
    """Compare scores or logits of the self-check texts with those of the CPU in fp32.

    Args:
        reference: Float32 (n, labels), computed on the CPU in fp32.
        scores: Scores of the same texts from the engine that is checked, float32 (n, labels).
        tolerance: Largest allowed difference, relative to the largest absolute value of the
            reference, or to 1 if that is larger.
        where: Engine, device and precision, for the message.

    Raises:
        ModelError: A score is not finite, or differs too much.
    """
    if not np.isfinite(scores).all():
        raise ModelError(f"{where} gives scores that are not finite; use --device cpu.")
    difference = float(np.abs(scores - reference).max() / max(1.0, np.abs(reference).max()))
    if not difference <= tolerance:  # this form also refuses NaN
        raise ModelError(
            f"{where} gives wrong scores: they differ by {difference:.3g} from those of the CPU in "
            f"fp32, and {tolerance:g} is allowed; use --device cpu or --precision fp32."
        )
