import math

import pytest
import torch

from sbert_search.models.embedding_losses import (
    candidate_scores,
    embedding_cosine,
    embedding_mse,
    kl_divergence,
    margin_mse,
    matryoshka,
)


def test_margins_of_a_positive_over_its_negatives() -> None:
    anchors = torch.tensor([[1.0, 2.0]])
    candidates = torch.tensor([[[3.0, 1.0], [1.0, 1.0], [0.0, 0.0]]])
    scores = candidate_scores(anchors, candidates)
    assert scores.tolist() == [[5.0, 3.0, 0.0]]
    assert margin_mse(scores, torch.tensor([[2.0, 1.0, -1.0]])).tolist() == [(1 + 4) / 2]


def test_divergence_of_two_distributions() -> None:
    scores, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3.0), 0.0]])
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert kl_divergence(scores, teacher).item() == pytest.approx(expected, abs=1e-6)
    assert kl_divergence(teacher + 5, teacher).item() == pytest.approx(0.0, abs=1e-6)
    warm = kl_divergence(scores, 2 * teacher, temperature=2.0)
    assert warm.item() == pytest.approx(4 * expected, abs=1e-6)


def test_every_text_of_a_row_follows_its_teacher() -> None:
    embeddings = torch.tensor([[[1.0, 0.0], [1.0, 2.0]]])
    assert embedding_mse(embeddings, torch.tensor([[1.0, 1.0]])).tolist() == [(0 + 1 + 0 + 1) / 4]


def test_the_cosine_loss_may_add_the_squared_distance() -> None:
    embeddings = torch.tensor([[[3.0, 4.0], [2.0, 0.0]]])  # cosines 0.6 and 1, distances 20 and 1
    teacher = torch.tensor([[1.0, 0.0]])
    assert embedding_cosine(embeddings, teacher).tolist() == pytest.approx([(0.4 + 0) / 2])
    both = embedding_cosine(embeddings, teacher, l2=0.5)
    assert both.tolist() == pytest.approx([(0.4 + 10 + 0 + 0.5) / 2])


def test_matryoshka_adds_up_scaled_prefixes() -> None:
    embeddings = torch.tensor([[3.0, 4.0, 12.0]])
    total = matryoshka(lambda e: e[:, 0].sum(), embeddings, [3, 2, 1], [1.0, 2.0, 4.0])
    assert total.item() == pytest.approx(3 / 13 + 2 * 3 / 5 + 4)
