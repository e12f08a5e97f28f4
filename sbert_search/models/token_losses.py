"""Losses over tokens; each returns the sum over the tokens, and the number of these tokens.

The caller adds up the sums and the numbers of all parts of a batch, and divides the total sum by
the total number. It therefore makes no difference whether a batch is split into parts, or over the
processes of distributed training.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cosine_similarity,
    cross_entropy,
    kl_div,
)

IGNORED = -100
"""The label of a token that is not part of the loss."""
_BLOCK_LOGITS = 2**18  # logits computed at a time on a CPU: 1 MiB in fp32, fits a core's cache


def token_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the tokens that have a label, in nats, and the number of these tokens.

    Logits are float (..., classes), ``labels`` int64 (...), `IGNORED` for tokens without a label.
    All tokens may be without a label.
    """
    flat, scores = labels.flatten(), logits.flatten(0, -2)
    if scores.device.type == "cpu" and scores.requires_grad:
        total = cast(Tensor, _CrossEntropy.apply(scores, flat))  # type: ignore[no-untyped-call]
    else:
        total = cross_entropy(scores.float(), flat, ignore_index=IGNORED, reduction="sum")
    return total, (flat != IGNORED).sum()


class _CrossEntropy(torch.autograd.Function):
    """Summed cross-entropy in fp32, with its gradient computed in the forward pass.

    Loss and gradient are computed for a few rows (tokens) at a time, whose logits fit into a core's
    cache. torch's `cross_entropy` makes several passes over all rows. If the classes are the words
    of a vocabulary, memory bandwidth limits the speed of each of these passes.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, labels: Tensor) -> Tensor:
        total = torch.zeros(())
        grad_logits = torch.empty_like(logits)
        parts = (
            torch.split(t, max(1, _BLOCK_LOGITS // logits.shape[-1]))
            for t in (logits, labels, grad_logits)
        )
        for some_logits, some_labels, some_grad in zip(*parts, strict=True):
            scored = (some_labels != IGNORED).float().unsqueeze(1)
            at_label = some_labels.masked_fill(some_labels == IGNORED, 0).unsqueeze(1)
            scores = some_logits.float()
            probs = scores.softmax(dim=-1)
            # log-sum-exp = max(score) - log(max(prob)), so no second log-sum-exp of the scores is
            # needed. The logarithm is finite, since max(prob) is at least 1 / number of classes.
            log_sums = scores.amax(-1, keepdim=True) - probs.amax(-1, keepdim=True).log()
            losses = log_sums - scores.gather(1, at_label)
            total += (losses * scored).sum()
            probs.scatter_add_(1, at_label, -torch.ones_like(losses))
            some_grad.copy_(probs.mul_(scored))
        ctx.save_for_backward(grad_logits)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: BackwardCFunction, grad_total: Tensor) -> tuple[Tensor, None]:
        (grad_logits,) = ctx.saved_tensors
        # The saved gradient may be overwritten, since autograd refuses a second backward pass
        # through the same graph.
        return grad_logits.mul_(grad_total), None


def replaced_token_loss(logits: Tensor, replaced: Tensor) -> tuple[Tensor, int]:
    """Binary cross-entropy, in nats, of the log-odds, float (n,), that tokens were replaced.

    Source: Clark et al. 2020, ELECTRA, section 2 (arXiv:2003.10555).
    """
    loss = binary_cross_entropy_with_logits(logits.float(), replaced.float(), reduction="sum")
    return loss, len(replaced)


def soft_target_loss(student: Tensor, teacher: Tensor, temperature: float) -> tuple[Tensor, int]:
    """KL(teacher || student) over a vocabulary in nats, times the squared temperature.

    Logits are float (n, vocab), one row for each token; those of the teacher get no gradient.

    Sources: Hinton et al. 2015 (arXiv:1503.02531) section 2; Sanh et al. 2019, DistilBERT, section
    3 (arXiv:1910.01108).
    """
    logs = (student.float() / temperature).log_softmax(-1)
    target = (teacher.detach().float() / temperature).log_softmax(-1)
    return kl_div(logs, target, reduction="sum", log_target=True) * temperature**2, len(student)


def cosine_loss(student: Tensor, teacher: Tensor) -> tuple[Tensor, int]:
    """1 - cosine between the hidden states (n, hidden) of a student and those of its fixed teacher.

    Source: Sanh et al. 2019, DistilBERT, section 3 (arXiv:1910.01108).
    """
    cosines = cosine_similarity(student.float(), teacher.detach().float(), dim=-1)
    return (1 - cosines).sum(), len(student)
