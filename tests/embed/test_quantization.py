"""Quantised vectors by hand, and beside sentence-transformers."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sentence_transformers.util import quantize_embeddings

from sbert_search.embed.protocol import Vectors
from sbert_search.embed.vectors import VectorPrecision, quantize

PRECISIONS: tuple[VectorPrecision, ...] = get_args(VectorPrecision)


def test_steps_and_bits_by_hand() -> None:
    vectors = np.array([[0.0, -255.0, 5.0], [255.0, 255.0, 5.0], [1.5, 0.0, 5.0]], np.float32)
    assert quantize(vectors, "uint8").tolist() == [[0, 0, 0], [255, 255, 0], [1, 127, 0]]
    assert quantize(vectors, "int8").tolist() == [
        [-128, -128, -128],
        [127, 127, -128],
        [-127, -1, -128],
    ]
    assert quantize(vectors, "ubinary").tolist() == [[0b00100000], [0b11100000], [0b10100000]]
    assert quantize(vectors, "binary").tolist() == [[32 - 128], [224 - 128], [160 - 128]]


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(2, 9), st.integers(1, 20)),
        elements=st.floats(-8, 8, width=32, allow_subnormal=False),
    )
)
def test_results_are_those_of_the_library(vectors: Vectors) -> None:
    for precision in PRECISIONS:
        ours, theirs = quantize(vectors, precision), quantize_embeddings(vectors, precision)
        assert isinstance(theirs, np.ndarray)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
