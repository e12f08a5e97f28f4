"""Virtual adversarial training: predictions should not change if embeddings change slightly.

Sources: Jiang et al. 2020, SMART, section 3.1, smoothness-inducing adversarial regularization
(arXiv:1911.03437); He et al. 2021, DeBERTa, section 4, scale-invariant fine-tuning
(arXiv:2006.03654).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from sbert_search.declared import Bounds, check
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens

LOSS = "adversarial"
"""Name of the loss that `virtual_adversarial` computes."""

Divergence = Callable[[Tensor, Tensor], Tensor]
"""Compares two outputs of a model for one batch; returns the difference, summed over the rows."""
_Amount = Annotated[float, Bounds(above=0, below=math.inf)]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdversarialConfig:
    """Virtual adversarial training; with one ascent step, training takes about three times as long.

    The defaults suit normalised embeddings, whose elements have mean 0 and variance 1.

    Attributes:
        kind: "none": off. "sift": perturb the embeddings after their layer norm. "smart": perturb
            the word embeddings, before that norm.
    """

    kind: Literal["none", "sift", "smart"] = "none"
    weight: _Amount = 1.0  # factor of this loss beside the loss of the task
    noise: _Amount = 0.01  # standard deviation of the first perturbation
    step: _Amount = 0.01  # largest change of an element in one ascent step
    steps: Annotated[int, Bounds(1)] = 1  # ascent steps
    radius: _Amount = 0.05  # largest perturbation of an element

    def __post_init__(self) -> None:
        check(self, table="adversarial.")


def virtual_adversarial(
    forward: Callable[[], Tensor],
    clean: Tensor,
    divergence: Divergence,
    encoder: Encoder,
    tokens: PackedTokens,
    config: AdversarialConfig,
) -> Tensor:
    """Perturb the embeddings so that the output of a model changes much; return the change.

    ``clean`` is the output of ``forward`` without a perturbation. The change is the sum of the
    divergences of all rows, a scalar with a gradient.
    """
    shape = (tokens.total, encoder.config.table_size)
    delta = config.noise * torch.randn(shape, device=tokens.input_ids.device)
    fixed = clean.detach()
    for _ in range(config.steps):
        delta.requires_grad_()
        with perturbed_by(encoder, delta, config):
            (gradient,) = torch.autograd.grad(divergence(forward(), fixed), delta)
        largest = gradient.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30)
        delta = delta.detach() + config.step * gradient / largest
        delta = delta.clamp(-config.radius, config.radius)
    with perturbed_by(encoder, delta, config):
        return divergence(forward(), clean)


@contextmanager
def perturbed_by(encoder: Encoder, delta: Tensor, config: AdversarialConfig) -> Iterator[None]:
    """Add a perturbation to the embeddings of each token while the context is open."""
    embeddings = encoder.embeddings
    layer: nn.Module = embeddings.norm if config.kind == "sift" else embeddings.word

    def add(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        # The layer norm scales normalised embeddings by its weight, and so the perturbation too.
        scale = embeddings.norm.weight if config.kind == "sift" else 1.0
        return output + (delta * scale).to(output.dtype)

    handle = layer.register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()


def symmetric_kl(logits: Tensor, others: Tensor) -> Tensor:
    """Sum over all rows of KL(p || q) + KL(q || p) of the softmax of two logits (..., classes)."""
    log_p, log_q = logits.float().log_softmax(-1), others.float().log_softmax(-1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()


def symmetric_binary_kl(logits: Tensor, others: Tensor) -> Tensor:
    """Symmetric KL divergence of independent classes, averaged over the classes, summed over rows.

    Both logits are (n, classes); the probability of a class is the sigmoid of its logit.
    """
    x, y = logits.float(), others.float()
    return ((x.sigmoid() - y.sigmoid()) * (x - y)).mean(-1).sum()


def squared_difference(logits: Tensor, others: Tensor) -> Tensor:
    """Sum of the squared differences of predicted numbers, (n, 1)."""
    return (logits.float() - others.float()).square().sum()
