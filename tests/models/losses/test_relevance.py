import math

import pytest
import torch

from sbert_search.models.logit_losses import (
    list_net,
    list_softmax,
    ordered_pairs,
    pairwise_logistic,
)

LOGITS = torch.tensor([1.0, 0.0, 3.0, 2.0, 5.0])
GRADES = torch.tensor([1.0, 0.0, 0.0, 2.0, 1.0])
SIZES = (3, 2)


def test_pairs_stay_within_a_query() -> None:
    found = ordered_pairs(GRADES, SIZES).nonzero().tolist()
    assert found == [[0, 0, 1], [0, 0, 2], [1, 0, 1]]


def test_pairwise_by_hand() -> None:
    expected = [math.log(1 + math.exp(-ahead)) for ahead in (1.0, -2.0, -3.0)]
    assert pairwise_logistic(LOGITS, GRADES, SIZES).tolist() == pytest.approx(expected)


def test_list_net_by_hand() -> None:
    first = [math.log(sum(map(math.exp, (1, 0, 3)))) - x for x in (1, 0, 3)]
    target = [math.e / (math.e + 2), 1 / (math.e + 2), 1 / (math.e + 2)]
    expected = sum(w * x for w, x in zip(target, first, strict=True))
    assert list_net(LOGITS, GRADES, SIZES)[0].item() == pytest.approx(expected)


def test_list_softmax_by_hand() -> None:
    both = math.log(math.exp(2) + math.exp(5))
    expected = [math.log(sum(map(math.exp, (1, 0, 3)))) - 1, (2 * (both - 2) + (both - 5)) / 3]
    assert list_softmax(LOGITS, GRADES, SIZES).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [pairwise_logistic, list_net, list_softmax])
def test_extreme_logits_have_finite_gradients(loss: object) -> None:
    assert callable(loss)
    logits = torch.tensor([-1e4, 1e4, 0.0, 300.0, -300.0], requires_grad=True)
    torch.autograd.backward(loss(logits, GRADES, SIZES).sum())
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
