from __future__ import annotations

import numpy as np
import pytest

from sbert_search.embed.engines.protocol import SELF_CHECK_TEXTS, check_scores, check_vectors
from sbert_search.errors import ModelError

N = len(SELF_CHECK_TEXTS)


def test_vectors_that_differ_are_refused_with_the_text() -> None:
    reference = np.eye(N, dtype=np.float32)
    check_vectors(reference, reference * 3, min_cosine=0.99, where="x")
    other = reference.copy()
    other[2] = reference[3]
    with pytest.raises(ModelError, match=f"x gives wrong vectors.*{SELF_CHECK_TEXTS[2][:20]}"):
        check_vectors(reference, other, min_cosine=0.99, where="x")


@pytest.mark.parametrize("broken", ["reference", "vectors"])
def test_a_value_that_is_not_finite_never_passes(broken: str) -> None:
    arrays = {name: np.ones((N, 4), np.float32) for name in ("reference", "vectors")}
    arrays[broken][1, 2] = np.nan
    with pytest.raises(ModelError):
        check_vectors(**arrays, min_cosine=0.99, where="x")


@pytest.mark.parametrize("reference", [np.nan, 0.7])
def test_scores_that_differ_or_cannot_be_compared_are_refused(reference: float) -> None:
    scores = np.full((1, 1), 0.5, np.float32)
    check_scores(scores, scores, tolerance=0.01, where="onnx")
    with pytest.raises(ModelError, match="gives wrong scores: they differ by"):
        check_scores(np.full((1, 1), reference, np.float32), scores, tolerance=0.01, where="onnx")
