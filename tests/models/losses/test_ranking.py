import math

import pytest
import torch

from sbert_search.models.embedding_losses import angle_similarity, cosent, online_contrastive


def test_cosent_counts_pairs_against_their_order() -> None:
    similarities = torch.tensor([0.9, 0.2, 0.5])
    scores = torch.tensor([0.1, 0.1, 0.8])  # both others should be below the last
    expected = math.log(1 + math.exp(2 * 0.4) + math.exp(2 * -0.3))
    assert cosent(similarities, scores, scale=2.0).item() == pytest.approx(expected, abs=1e-6)


def test_cosent_of_equal_scores_is_0() -> None:
    assert cosent(torch.tensor([0.9, 0.1]), torch.ones(2)).item() == 0.0


def test_angle_similarity_of_complex_numbers() -> None:
    u, v = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])  # 1 and i
    assert angle_similarity(u, u).item() == pytest.approx(1.0)
    assert angle_similarity(u, v).item() == pytest.approx(1.0)  # |0 - 1|
    assert angle_similarity(u, u + v).item() == pytest.approx(0.0, abs=1e-6)
    assert angle_similarity(u[:, :1], u[:, :1]).item() == pytest.approx(1.0)  # an odd length


def test_online_contrastive_takes_the_hard_pairs_only() -> None:
    apart = torch.tensor([0.1, 0.6, 0.3, 0.9])
    labels = torch.tensor([1, 1, 0, 0])
    # hard: the positive at 0.6 (beyond 0.3) and the negative at 0.3 (before 0.6)
    assert online_contrastive(apart, labels).item() == pytest.approx(0.36 + 0.04, abs=1e-6)


def test_online_contrastive_of_one_class_compares_with_the_mean() -> None:
    apart = torch.tensor([0.2, 0.4])
    assert online_contrastive(apart, torch.ones(2)).item() == pytest.approx(0.16)
    assert online_contrastive(apart, torch.zeros(2)).item() == pytest.approx(0.09)
