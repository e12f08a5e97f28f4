"""Losses of cross-encoders against sentence-transformers': value and gradient to 1e-5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sentence_transformers.cross_encoder import CrossEncoder
from sentence_transformers.cross_encoder import losses as theirs
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from sbert_search.models.logit_losses import list_net, pairwise_logistic

SIZES = [4, 2, 7]
N = sum(SIZES)


class Given(CrossEncoder):
    """A cross-encoder as their losses use one, which gives the logits it was made with."""

    num_labels = 1
    device = torch.device("cpu")

    def __init__(self, logits: Tensor) -> None:
        nn.Module.__init__(self)
        self.logits, self._taken = logits, 0
        self.num_labels = 1 if logits.ndim == 1 else logits.shape[1]

    def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        start, self._taken = self._taken, self._taken + len(inputs)
        return {"rows": torch.arange(start, self._taken)}

    def forward(self, input: Any, **kwargs: Any) -> Any:
        return {"scores": self.logits[input["rows"]]}


def both(
    ours: Callable[[Tensor], Tensor],
    loss: Callable[[Any], nn.Module],
    inputs: list[Any],
    labels: Any,
    *shape: int,
) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    value = ours(logits)
    (gradient,) = torch.autograd.grad(value, logits)
    reference = loss(Given(logits))(inputs, labels)
    (expected,) = torch.autograd.grad(reference, logits)
    assert value.item() == pytest.approx(reference.item(), abs=1e-5)
    assert torch.allclose(gradient, expected, atol=1e-5)


QUERIES = [f"q{n}" for n in range(len(SIZES))]
DOCUMENTS = [[f"d{n}" for n in range(size)] for size in SIZES]
GRADES = torch.randint(0, 3, (N,), generator=torch.Generator().manual_seed(2)).float()
PAIRS = [["a"] * N, ["b"] * N]


def test_pairwise_is_rank_net() -> None:
    both(
        lambda logits: pairwise_logistic(logits, GRADES, SIZES).mean(),
        lambda model: theirs.RankNetLoss(model, reduction_log="natural"),
        [QUERIES, DOCUMENTS],
        list(torch.split(GRADES, SIZES)),
        N,
    )


def test_list_net() -> None:
    both(
        lambda logits: list_net(logits, GRADES, SIZES).mean(),
        theirs.ListNetLoss,
        [QUERIES, DOCUMENTS],
        list(torch.split(GRADES, SIZES)),
        N,
    )


def test_those_that_torch_has() -> None:
    """What `training.reranker` takes from torch is what their losses are."""
    scores = torch.rand(N, generator=torch.Generator().manual_seed(3))
    classes = torch.arange(N) % 3
    bce = binary_cross_entropy_with_logits
    both(lambda x: bce(x, scores), theirs.BinaryCrossEntropyLoss, PAIRS, scores, N)
    both(lambda x: mse_loss(x, scores), theirs.MSELoss, PAIRS, scores, N)
    both(lambda x: cross_entropy(x, classes), theirs.CrossEntropyLoss, PAIRS, classes, N, 3)
