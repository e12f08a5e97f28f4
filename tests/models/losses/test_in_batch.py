import math

import pytest
import torch

from sbert_search.models.embedding_losses import multiple_negatives_ranking


def test_a_hand_worked_batch() -> None:
    anchors = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    candidates = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, -1.0]])  # the last is hard negative
    # cosines: anchor 0: 1, 0.6, 0; anchor 1: 0, 0.8, -1
    first = -math.log(math.exp(2) / (math.exp(2) + math.exp(1.2) + 1))
    second = -math.log(math.exp(1.6) / (1 + math.exp(1.6) + math.exp(-2)))
    loss = multiple_negatives_ranking(anchors, candidates, scale=2.0)
    assert loss.item() == pytest.approx((first + second) / 2, abs=1e-6)


def test_both_directions_are_averaged() -> None:
    anchors, positives = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    # anchors: cosines (1, 1) and (0, 0); positives: (1, 0) and (1, 0), of which the last is wrong
    forth = math.log(2)
    back = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2))) / 2
    loss = multiple_negatives_ranking(anchors, positives, scale=2.0, symmetric=True)
    assert loss.item() == pytest.approx((forth + back) / 2, abs=1e-6)
