"""Losses of logits: of texts, tokens and answers, and of candidate texts with relevance grades.

The loss of a batch is the mean of the values that a loss returns; cross-entropies are in nats. Each
value depends on one text, token or query only, so the sums over the parts of a batch add up. The
losses of pre-training and distillation, which have a value for each token, return the sum of these
values and their number.

In the losses of a cross-encoder, ``logits`` and ``grades`` have one float for each candidate,
concatenated query by query. ``sizes`` has the number of candidates of each query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cosine_similarity,
    cross_entropy,
    kl_div,
    mse_loss,
    softplus,
)
from torch.nn.utils.rnn import pad_sequence


def class_cross_entropy(logits: Tensor, classes: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of the true class of each text, times the weight of that class; float (n,).

    Logits are float (n, labels), ``classes`` int64 (n,), and ``weights`` float (labels,), None: all
    1. To average over a batch, divide by the number of its texts. The mean that torch computes is
    divided by the sum of the weights of the texts, so the means of two halves of a batch would not
    average to the mean of the batch. The two divisors are equal in expectation if the mean weight
    of the training texts is 1.
    """
    losses = cross_entropy(logits.float(), classes, reduction="none")
    return losses if weights is None else losses * weights[classes]


def several_classes_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Binary cross-entropy of each class of each text, averaged over the classes; float (n,).

    Logits and targets (1 for the classes that a text has, otherwise 0) are float (n, labels). In
    the cross-entropy of a class, texts that have the class get its weight, and the other texts get
    weight 1. None: all weights are 1.
    """
    losses = binary_cross_entropy_with_logits(
        logits.float(), targets, pos_weight=weights, reduction="none"
    )
    return losses.mean(dim=1)


def squared_error(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Squared difference of logits (n, 1) to numbers (n,), float (n,); there are no weights."""
    return mse_loss(logits.float().squeeze(-1), targets, reduction="none")


def span_cross_entropy(
    start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor
) -> Tensor:
    """Mean of the cross-entropies of the first and the last token of the answer, float32 (n,).

    An input consists of the tokens of a question and of the text that may contain the answer.
    Logits are float (n, longest), -inf after the end of an input. ``starts`` and ``ends`` are
    positions in the input, int64 (n,); 0, the position of the first token, if there is no answer.

    Source: Devlin et al. 2019, BERT, sections 4.2 and 4.3 (arXiv:1810.04805).
    """
    first = cross_entropy(start_logits.float(), starts, reduction="none")
    last = cross_entropy(end_logits.float(), ends, reduction="none")
    return (first + last) / 2


def ordered_pairs(grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """Mark all ordered pairs of candidates of a query whose first candidate has the higher grade.

    The result is bool (queries, longest, longest), where longest is the maximum of ``sizes``. [q,
    i, j] is True if candidate i of query q has a higher grade than candidate j.
    """
    padded = _padded(grades, sizes, float("nan"))  # comparisons with NaN are false
    return padded.unsqueeze(2) > padded.unsqueeze(1)


def pairwise_logistic(logits: Tensor, grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """RankNet loss of each pair of candidates that `ordered_pairs` marks, float (pairs,).

    It is log(1 + exp(logit of the candidate with the lower grade - logit of the other)).

    Source: Burges et al. 2005, Learning to Rank using Gradient Descent (RankNet), section 3. This
    loss is in nats; sentence-transformers' RankNetLoss is in bits by default.
    """
    padded = _padded(logits, sizes, 0.0)
    margins = padded.unsqueeze(2) - padded.unsqueeze(1)
    return softplus(-margins[ordered_pairs(grades, sizes)])


def list_net(logits: Tensor, grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """Cross-entropy between the softmax of each query's grades and that of its logits (ListNet).

    Source: Cao et al. 2007, Learning to Rank: From Pairwise Approach to Listwise Approach, section
    4; sentence-transformers' ListNetLoss.
    """
    return _list_cross_entropy(logits, _padded(grades, sizes, -torch.inf).softmax(dim=1), sizes)


def list_softmax(logits: Tensor, grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """Cross-entropy between each query's grades, scaled to sum 1, and the softmax of its logits.

    Grades are at least 0, and not all 0 in a query.

    Source: Gao, Dai & Callan 2021, Rethink Training of BERT Rerankers, section 3.2, localized
    contrastive estimation (arXiv:2101.08751).
    """
    weights = _padded(grades, sizes, 0.0)
    return _list_cross_entropy(logits, weights / weights.sum(dim=1, keepdim=True), sizes)


def _list_cross_entropy(logits: Tensor, target: Tensor, sizes: Sequence[int]) -> Tensor:
    padded = _padded(logits, sizes, torch.finfo(logits.dtype).min)
    return -(target * padded.log_softmax(dim=1)).sum(dim=1)


def _padded(values: Tensor, sizes: Sequence[int], fill: float) -> Tensor:
    return pad_sequence(
        list(torch.split(values, list(sizes))), batch_first=True, padding_value=fill
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
