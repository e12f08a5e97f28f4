import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.models.token_classifier import best_spans


@given(st.integers(1, 8), st.integers(1, 9), st.integers(1, 70), st.integers(0, 99))
def test_spans_are_those_of_a_search_over_all_pairs(
    length: int, most: int, n: int, seed: int
) -> None:
    starts, ends = np.random.default_rng(seed).normal(size=(2, length)).astype(np.float32)
    pairs = [(a, b) for a in range(length) for b in range(a, min(length, a + most))]
    best = sorted(pairs, key=lambda pair: -(starts[pair[0]] + ends[pair[1]]))[:n]
    found = best_spans(starts, ends, n=n, max_tokens=most)
    assert [(span.first, span.last) for span in found] == best
    assert [span.score for span in found] == [float(starts[a] + ends[b]) for a, b in best]


def test_of_equal_spans_the_first_is_taken_and_of_no_tokens_there_is_none() -> None:
    zeros = np.zeros(4, dtype=np.float32)
    assert best_spans(zeros, zeros, n=1)[0][1:] == (0, 0)
    assert [span[1:] for span in best_spans(zeros, zeros, n=3)] == [(0, 0), (0, 1), (0, 2)]
    assert best_spans(zeros[:0], zeros[:0]) == []
