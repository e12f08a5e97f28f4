"""The four measures of similarity, by values worked out by hand."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from sbert_search.embed.vectors import similarity
from sbert_search.errors import ConfigError

FIRST = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
SECOND = np.array([[6.0, 8.0], [4.0, -3.0], [3.0, 4.0]], np.float32)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("cosine", [[1, 0, 1], [0, 0, 0]]),
        ("dot", [[50, 0, 25], [0, 0, 0]]),
        ("euclidean", [[-5, -(50**0.5), 0], [-10, -5, -5]]),
        ("manhattan", [[-7, -8, 0], [-14, -7, -7]]),
    ],
)
def test_a_measure_has_these_values(measure: str, expected: list[list[float]]) -> None:
    scores = similarity(FIRST, SECOND, measure)
    assert scores.dtype == np.float32
    assert scores == pytest.approx(np.array(expected), abs=1e-6)
    assert similarity(FIRST[:0], SECOND, measure).shape == (0, 3)
    assert similarity(FIRST, SECOND[:0], measure).shape == (2, 0)


@pytest.mark.parametrize("measure", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8, torch.bfloat16])
def test_small_integers_and_tensors_are_widened(measure: str, kind: Any) -> None:
    values = np.array([[100, 120], [3, 4]])
    is_torch = isinstance(kind, torch.dtype)
    given: Any = torch.tensor(values).to(kind) if is_torch else values.astype(kind)
    floats = values.astype(np.float32)
    expected = similarity(floats, floats, measure)
    assert similarity(given, given, measure) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("measure", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("shape", [(3, 1), (3, 3), (1, 2, 2)])
def test_vectors_of_another_dimension_are_refused(measure: str, shape: tuple[int, ...]) -> None:
    message = rf"shapes \(2, 2\) and {re.escape(str(shape))} cannot be compared; pass \(n, dim\)"
    with pytest.raises(ConfigError, match=message):
        similarity(FIRST, np.ones(shape, np.float32), measure)
