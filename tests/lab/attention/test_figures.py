import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.lab.attention.maps import NAMES, Roles, head_figures, sum_text

# [CLS] a b [SEP]: the figures are of the queries a and b.
ROLES = Roles((True, False, False, False), (False, False, False, True))
ROWS = [
    [1.0, 0.0, 0.0, 0.0],
    [0.5, 0.25, 0.0, 0.25],  # a
    [0.0, 0.0, 0.5, 0.5],  # b
    [0.0, 0.0, 0.0, 1.0],
]


def test_figures_of_a_head_worked_by_hand() -> None:
    sums = sum_text(torch.tensor([ROWS]), ROLES)
    (figures,) = head_figures(sums[None], 2)
    ln2 = math.log(2)
    # a: 0.5 ln 2 + 0.25 ln 4 + 0.25 ln 4 = 1.5 ln 2; b: ln 2.
    assert figures.entropy == pytest.approx((1.5 * ln2 + ln2) / 2)
    # a: 0.5 x 1 + 0.25 x 0 + 0.25 x 2 = 1; b: 0.5 x 0 + 0.5 x 1 = 0.5.
    assert figures.distance == pytest.approx(0.75)
    assert figures.first == pytest.approx(0.25)
    assert figures.separator == pytest.approx((0.25 + 0.5) / 2)
    assert figures.diagonal == pytest.approx((0.25 + 0.5) / 2)
    assert figures.previous == pytest.approx((0.5 + 0.0) / 2)
    assert figures.next == pytest.approx((0.0 + 0.5) / 2)
    assert (figures.layer, figures.head) == (1, 1)


@given(st.integers(0, 50), st.integers(1, 7))
def test_figures_equal_those_of_loops(seed: int, length: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(2, length, length, generator=generator).softmax(-1)
    special = torch.rand(length, generator=generator) < 0.4
    roles = Roles(
        tuple(n == 0 for n in range(length)),
        tuple(n > 0 and bool(special[n]) for n in range(length)),
    )
    got = sum_text(probs, roles)
    for head in range(2):
        expected = dict.fromkeys(NAMES, 0.0)
        for i in range(length):
            if roles.special[i]:
                continue
            for j in range(length):
                p = float(probs[head, i, j])
                expected["entropy"] -= p * math.log(p)
                expected["distance"] += p * abs(i - j)
                expected["first"] += p * roles.first[j]
                expected["separator"] += p * roles.separator[j]
                expected["diagonal"] += p * (i == j)
                expected["previous"] += p * (j == i - 1)
                expected["next"] += p * (j == i + 1)
        assert got[head].tolist() == pytest.approx(list(expected.values()), abs=1e-5)


def test_no_attention_on_zero_is_no_entropy() -> None:
    one = torch.eye(4)[None]
    (figures,) = head_figures(sum_text(one, ROLES)[None], 2)
    assert (figures.entropy, figures.diagonal, figures.distance) == (0.0, 1.0, 0.0)
