import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from sbert_search.losses.in_batch import multiple_negatives


def test_a_hand_worked_batch() -> None:
    anchors = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    candidates = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, -1.0]])  # the last is hard negative
    # cosines: anchor 0: 1, 0.6, 0; anchor 1: 0, 0.8, -1
    first = -math.log(math.exp(2) / (math.exp(2) + math.exp(1.2) + 1))
    second = -math.log(math.exp(1.6) / (1 + math.exp(1.6) + math.exp(-2)))
    loss = multiple_negatives(anchors, candidates, scale=2.0)
    assert loss.item() == pytest.approx((first + second) / 2, abs=1e-6)


@pytest.mark.parametrize("hard", [0, 8])
def test_value_and_gradient_are_those_of_sentence_transformers(hard: int) -> None:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    def gradients(use_ours: bool) -> tuple[float, Tensor, Tensor]:
        torch.manual_seed(2)
        anchors = torch.randn(8, 6, requires_grad=True)
        candidates = torch.randn(8 + hard, 6, requires_grad=True)
        if use_ours:
            loss = multiple_negatives(anchors, candidates)
        else:
            columns = [anchors, *torch.split(candidates, 8)]
            reference: Any = cast("Any", MultipleNegativesRankingLoss)(model=None)
            loss = reference.compute_loss_from_embeddings(columns, None)
        torch.autograd.backward(loss)
        assert anchors.grad is not None
        assert candidates.grad is not None
        return loss.item(), anchors.grad, candidates.grad

    (ours, *mine), (theirs, *others) = gradients(True), gradients(False)
    assert ours == pytest.approx(theirs, abs=1e-5)
    for one, other in zip(mine, others, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-5)
