from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sbert_search.losses.in_batch import multiple_negatives
from sbert_search.runtime.distributed import Ranks
from sbert_search.training.gradcache import add_in_batch_gradients
from sbert_search.training.objective import Batch
from sbert_search.training.step import Scene
from tests.training.small import PairObjective, TokenModel, pair_batches, settings

SCENE = Scene(torch.device("cpu"), torch.float32, Ranks(), seed=5, step=3)


def micro_batches(size: int) -> list[Batch]:
    batches = pair_batches(settings())
    rows = batches.rows(0, 0)
    return [batches.collate(part, 0) for part in batches.micro_batches(rows, size)]


def gradients(model: TokenModel) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def cached(batches: Sequence[Batch], dropout: float) -> tuple[dict[str, Tensor], float]:
    model = TokenModel(dropout)
    tally = add_in_batch_gradients(model, PairObjective(), batches, SCENE)
    return gradients(model), tally.losses["mnrl"][0].item()


def direct(batches: Sequence[Batch], dropout: float) -> tuple[dict[str, Tensor], float]:
    """One graph over all micro-batches, as no large batch could have it."""
    model, parts = TokenModel(dropout), []
    for number, batch in enumerate(batches):
        with SCENE.forward(number):
            parts.append(PairObjective().embed(model, batch))
    embeddings = torch.cat(parts)
    loss = multiple_negatives(embeddings[:, 0], embeddings[:, 1])
    torch.autograd.backward(loss)
    return gradients(model), loss.item()


@pytest.mark.parametrize("size", [32, 8, 5])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_the_direct_step(size: int, dropout: float) -> None:
    batches = micro_batches(size)
    (ours, loss), (theirs, reference) = cached(batches, dropout), direct(batches, dropout)
    assert loss == pytest.approx(reference, abs=1e-6)
    assert set(ours) == set(theirs)
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name], rtol=0, atol=1e-5), name
        assert gradient.abs().max() > 1e-4


def test_parts_do_not_change_the_gradient_without_dropout() -> None:
    whole, _ = cached(micro_batches(32), 0.0)
    parts, _ = cached(micro_batches(5), 0.0)
    for name, gradient in whole.items():
        assert torch.allclose(gradient, parts[name], rtol=0, atol=1e-5), name
