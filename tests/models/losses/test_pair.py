import math

import pytest
import torch

from sbert_search.models.embedding_losses import (
    all_distances,
    concatenate,
    contrastive,
    cosine_mse,
    distances,
)

U = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
V = torch.tensor([[4.0, 3.0], [1.0, 0.0]])  # cosines 24 / 25 and 0


def test_concatenations() -> None:
    parts = ("u", "v", "|u-v|", "u*v")
    assert concatenate(U, V, parts)[0].tolist() == [3, 4, 4, 3, 1, 1, 12, 12]
    assert concatenate(U, V)[1].tolist() == [0, 2, 1, 0, 1, 2]


def test_cosine_mse_is_one_number_a_pair() -> None:
    loss = cosine_mse(U, V, torch.tensor([1.0, 0.5]))
    assert loss.tolist() == pytest.approx([0.04**2, 0.25], abs=1e-6)


def test_contrastive_pulls_positives_and_pushes_near_negatives() -> None:
    together = contrastive(U, V, torch.ones(2), margin=0.5)
    assert together.tolist() == pytest.approx([0.5 * 0.04**2, 0.5], abs=1e-6)
    apart = contrastive(U, V, torch.zeros(2), margin=0.5)
    assert apart.tolist() == pytest.approx([0.5 * 0.46**2, 0.0], abs=1e-6)
    euclidean = contrastive(U, V, torch.ones(2), distance="euclidean")
    assert euclidean.tolist() == pytest.approx([1.0, 2.5], abs=1e-6)


def test_distances_of_a_text_to_itself_are_0_with_a_finite_gradient() -> None:
    x = U.clone().requires_grad_()
    torch.autograd.backward(distances(x, x.detach(), "euclidean").sum())
    torch.autograd.backward(all_distances(x, "euclidean").sum())
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_distances_of_all_rows() -> None:
    assert all_distances(U, "euclidean")[0, 1].item() == pytest.approx(math.sqrt(13))
    assert all_distances(U, "cosine")[0, 1].item() == pytest.approx(0.2)
