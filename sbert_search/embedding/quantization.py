"""Vectors as small integers or bits, as sentence-transformers quantises them."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import Vectors
from sbert_search.errors import ConfigError

VectorPrecision = Literal["float32", "int8", "uint8", "binary", "ubinary"]


def quantized(
    vectors: Vectors, precision: VectorPrecision
) -> Vectors | NDArray[np.int8] | NDArray[np.uint8]:
    """Quantise vectors.

    Args:
        vectors: Float32 (n, dim).
        precision: One of these:

            - ``float32``: no change.
            - ``uint8``: The range of each dimension, from its lowest to its highest value among the
              vectors, is divided into 255 equal steps. A value becomes the number of whole steps
              between the lowest value and this value, 0 to 255.
            - ``int8``: The number of ``uint8`` minus 128.
            - ``ubinary``: One bit for each dimension: 1 for a value above 0, otherwise 0. Eight
              bits make a byte; the first dimension is its highest bit.
            - ``binary``: The bytes of ``ubinary`` minus 128.

    Returns:
        Float32, int8 or uint8, (n, dim); with ``binary`` and ``ubinary`` (n, ceil(dim / 8)).

    Raises:
        ConfigError: The precision is int8 or uint8, and there is only one vector, so that no
            dimension has a range.
    """
    if precision == "float32":
        return vectors
    if precision in ("ubinary", "binary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits - np.int16(128)).astype(np.int8)
    if len(vectors) == 1:
        raise ConfigError(
            f"precision {precision!r} needs at least two texts in a call, because it scales each "
            "dimension by its range over these texts. Encode more texts together, or use float32."
        )
    if len(vectors) == 0:
        return np.empty(vectors.shape, np.int8) if precision == "int8" else vectors.astype(np.uint8)
    low = vectors.min(axis=0)
    steps = (vectors.max(axis=0) - low) / 255
    steps = np.where(steps == 0, 1, steps)
    numbers: Vectors = np.clip(np.floor((vectors - low) / steps), 0, 255)
    if precision == "uint8":
        return numbers.astype(np.uint8)
    return (numbers - 128).astype(np.int8)
