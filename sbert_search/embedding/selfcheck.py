"""Eight texts that show whether a device computes what the CPU computes."""

from __future__ import annotations

import numpy as np

from sbert_search.embedding.protocol import Vectors
from sbert_search.errors import ModelError

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


def check_vectors(reference: Vectors, got: Vectors, *, least_cosine: float, where: str) -> None:
    """Compare vectors of the self-check texts with those of the CPU in fp32.

    Args:
        reference: Float32 (8, dim), computed on the CPU in fp32.
        got: The same texts computed elsewhere, float32 (8, dim).
        least_cosine: What every text must reach.
        where: Device, precision and kind of batch, for the message.

    Raises:
        ModelError: A number is not finite, or a vector points elsewhere.
    """
    if not np.isfinite(got).all():
        row = int(np.flatnonzero(~np.isfinite(got).all(axis=1))[0])
        raise ModelError(
            f"{where} gives numbers that are not finite for {SELF_CHECK_TEXTS[row][:40]!r}; use "
            "--device cpu or --precision fp32."
        )
    norms = np.linalg.norm(reference, axis=1) * np.linalg.norm(got, axis=1)
    cosines = (reference * got).sum(axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)
    if (worst := float(cosines.min())) < least_cosine:
        raise ModelError(
            f"{where} gives wrong numbers: cosine {worst:.6f} to the CPU in fp32 for "
            f"{SELF_CHECK_TEXTS[int(cosines.argmin())][:40]!r}, at least {least_cosine} needed; "
            "use --device cpu or --precision fp32."
        )
