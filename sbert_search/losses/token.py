"""Losses that are sums over tokens, given as (sum, count).

The caller divides by the count over the whole batch, so a batch in parts, or on several ranks, has
the loss of the batch in one piece however the terms fall.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cosine_similarity,
    cross_entropy,
    kl_div,
)

IGNORED = -100
"""The label of a position that is not scored."""
_CACHED = 2**18  # logits judged at a time on a CPU: 1 MiB in fp32


def token_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Score the true id of every labelled position; there may be none.

    Args:
        logits: Of every class, float (..., classes).
        labels: The true class, int64 (...); `IGNORED` where nothing is scored.

    Returns:
        Negative log-likelihood in nats summed over the scored positions, and how many they are.
    """
    flat, scores = labels.flatten(), logits.flatten(0, -2)
    if scores.device.type == "cpu" and scores.requires_grad:
        total = cast(Tensor, _CrossEntropy.apply(scores, flat))  # type: ignore[no-untyped-call]
    else:
        total = cross_entropy(scores.float(), flat, ignore_index=IGNORED, reduction="sum")
    return total, (flat != IGNORED).sum()


class _CrossEntropy(torch.autograd.Function):
    """The summed cross-entropy of some rows at a time, with its gradient while they are in cache.

    In fp32 whatever the type of the logits. Over a vocabulary, each pass through all rows of what
    torch computes one after another would wait for memory.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        total = torch.zeros(())
        gradient = torch.empty_like(logits)
        parts = (
            torch.split(t, max(1, _CACHED // logits.shape[-1])) for t in (logits, labels, gradient)
        )
        for some_logits, some_labels, some_gradient in zip(*parts, strict=True):
            scored = (some_labels != IGNORED).float().unsqueeze(1)
            at_label = some_labels.masked_fill(some_labels == IGNORED, 0).unsqueeze(1)
            scores = some_logits.float()
            probs = scores.softmax(dim=-1)
            # The highest score has the highest probability, which has a logarithm.
            log_sums = scores.amax(-1, keepdim=True) - probs.amax(-1, keepdim=True).log()
            losses = log_sums - scores.gather(1, at_label)
            total += (losses * scored).sum()
            probs.scatter_add_(1, at_label, -torch.ones_like(losses))
            some_gradient.copy_(probs.mul_(scored))
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_total: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(of_total), None  # a second time autograd refuses


def replaced_token_loss(logits: Tensor, replaced: Tensor) -> tuple[Tensor, int]:
    """Score for every token how sure a discriminator is of whether it was replaced.

    Args:
        logits: Log-odds of a replaced token, float (n,).
        replaced: Whether it was, bool (n,).

    Returns:
        Binary cross-entropy in nats summed over the tokens, and how many they are.

    Source: Clark et al. 2020, ELECTRA, section 2 (arXiv:2003.10555).
    """
    loss = binary_cross_entropy_with_logits(logits.float(), replaced.float(), reduction="sum")
    return loss, len(replaced)


def soft_target_loss(student: Tensor, teacher: Tensor, temperature: float) -> tuple[Tensor, int]:
    """Compare the distribution of a student over a vocabulary with its teacher's.

    Args:
        student: Logits, float (n, vocab).
        teacher: Logits, float (n, vocab); no gradient flows into them.
        temperature: Divides both logits; the loss is scaled back by its square.

    Returns:
        Kullback-Leibler divergence in nats summed over the positions, and how many they are.

    Sources: Hinton et al. 2015 (arXiv:1503.02531) section 2; Sanh et al. 2019, DistilBERT, section
    3 (arXiv:1910.01108).
    """
    ours = (student.float() / temperature).log_softmax(-1)
    theirs = (teacher.detach().float() / temperature).log_softmax(-1)
    return kl_div(ours, theirs, reduction="sum", log_target=True) * temperature**2, len(student)


def cosine_loss(student: Tensor, teacher: Tensor) -> tuple[Tensor, int]:
    """Turn the hidden states of a student towards its teacher's.

    Args:
        student: Float (n, hidden).
        teacher: Float (n, hidden); no gradient flows into them.

    Returns:
        1 - cosine summed over the tokens, and how many they are.

    Source: Sanh et al. 2019, DistilBERT, section 3 (arXiv:1910.01108).
    """
    cosines = cosine_similarity(student.float(), teacher.detach().float(), dim=-1)
    return (1 - cosines).sum(), len(student)
