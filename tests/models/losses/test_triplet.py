from itertools import product

import pytest
import torch
from torch import Tensor

from sbert_search.models.embedding_losses import (
    Distance,
    all_distances,
    all_triplets,
    hardest_triplets,
    semi_hard_triplets,
    triplet,
)

MARGIN = 0.4


def test_a_hand_worked_triplet() -> None:
    anchor, positive, negative = (
        torch.tensor([[0.0, 0.0]]),
        torch.tensor([[3.0, 4.0]]),
        torch.tensor([[0.0, 5.5]]),
    )
    assert triplet(anchor, positive, negative).tolist() == pytest.approx([0.5])
    assert triplet(anchor, positive, negative, margin=0.5).tolist() == [0.0]
    on_axes = torch.eye(2)[:1], torch.tensor([[1.0, 1.0]]), torch.tensor([[0.0, 2.0]])
    loss = triplet(*on_axes, margin=1.0, distance="cosine")
    assert loss.tolist() == pytest.approx([1 - 0.5**0.5], abs=1e-6)


@pytest.fixture(params=["cosine", "euclidean"])
def distance(request: pytest.FixtureRequest) -> Distance:
    kind: Distance = request.param
    return kind


def batch(seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (11,), generator=draw)
    return torch.randn(11, 5, generator=draw), torch.cat([labels[:-1], torch.tensor([9])])


def pairs(labels: list[int]) -> list[tuple[int, int]]:
    every = product(range(len(labels)), repeat=2)
    return [(a, p) for a, p in every if a != p and labels[a] == labels[p]]


@pytest.mark.parametrize("seed", range(5))
def test_all_triplets_against_brute_force(seed: int, distance: Distance) -> None:
    embeddings, labels = batch(seed)
    apart, classes = all_distances(embeddings, distance).tolist(), labels.tolist()
    losses = [
        max(0.0, apart[a][p] - apart[a][n] + MARGIN)
        for a, p in pairs(classes)
        for n in range(len(classes))
        if classes[n] != classes[a]
    ]
    broken = [loss for loss in losses if loss > 0]
    got = all_triplets(embeddings, labels, margin=MARGIN, distance=distance)
    assert got.item() == pytest.approx(sum(broken) / len(broken), abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_hardest_triplets_against_brute_force(seed: int, distance: Distance) -> None:
    embeddings, labels = batch(seed)
    apart, classes = all_distances(embeddings, distance).tolist(), labels.tolist()
    losses = []
    for a, row in enumerate(apart):
        positives = [row[p] for b, p in pairs(classes) if a == b]
        negatives = [row[n] for n in range(len(classes)) if classes[n] != classes[a]]
        losses.append(max(0.0, max(positives, default=0.0) - min(negatives) + MARGIN))
    got = hardest_triplets(embeddings, labels, margin=MARGIN, distance=distance)
    assert got.item() == pytest.approx(sum(losses) / len(losses), abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_semi_hard_triplets_against_brute_force(seed: int, distance: Distance) -> None:
    embeddings, labels = batch(seed)
    apart, classes = all_distances(embeddings, distance).tolist(), labels.tolist()
    losses = []
    for a, p in pairs(classes):
        negatives = [apart[a][n] for n in range(len(classes)) if classes[n] != classes[a]]
        farther = [d for d in negatives if d > apart[a][p]]
        chosen = min(farther) if farther else max(negatives)
        losses.append(max(0.0, apart[a][p] - chosen + MARGIN))
    got = semi_hard_triplets(embeddings, labels, margin=MARGIN, distance=distance)
    assert got.item() == pytest.approx(sum(losses) / len(losses), abs=1e-5)


@pytest.mark.parametrize("mined", [all_triplets, semi_hard_triplets])
def test_a_batch_without_two_of_a_class_has_no_loss(mined: object) -> None:
    assert callable(mined)
    assert mined(torch.randn(4, 3), torch.arange(4)).item() == 0.0
