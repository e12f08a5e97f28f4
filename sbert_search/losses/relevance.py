"""Losses of a cross-encoder, trained on queries whose candidate texts have relevance grades.

``logits`` and ``grades`` have one value for each candidate, concatenated query by query. ``sizes``
has the number of candidates of each query. Each value that a loss returns depends on one query
only. If a batch is split into parts, or over the processes of distributed training, the sums of the
parts therefore add up to the sum of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.nn.utils.rnn import pad_sequence


def ordered_pairs(grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """Mark all ordered pairs of candidates of a query whose first candidate has the higher grade.

    Args:
        grades: Relevance of each candidate, float (n,).
        sizes: Number of candidates of each query; they add up to n.

    Returns:
        Bool (queries, longest, longest), where longest is the maximum of ``sizes``. [q, i, j] is
        True if candidate i of query q has a higher grade than candidate j.
    """
    padded = _padded(grades, sizes, float("nan"))  # comparisons with NaN are false
    return padded.unsqueeze(2) > padded.unsqueeze(1)


def pairwise_logistic(logits: Tensor, grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """RankNet loss of each pair of candidates of a query with different grades.

    Args:
        logits: Float (n,).
        grades: Float (n,).
        sizes: Number of candidates of each query.

    Returns:
        log(1 + exp(logit of the candidate with the lower grade - logit of the candidate with the
        higher grade)) for each pair that `ordered_pairs` marks, float (pairs,).

    Source: Burges et al. 2005, Learning to Rank using Gradient Descent (RankNet), section 3. This
    loss is in nats; sentence-transformers' RankNetLoss is in bits by default.
    """
    padded = _padded(logits, sizes, 0.0)
    margins = padded.unsqueeze(2) - padded.unsqueeze(1)
    return softplus(-margins[ordered_pairs(grades, sizes)])


def list_net(logits: Tensor, grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """ListNet loss: cross-entropy between the softmax of the grades and the softmax of the logits.

    Args:
        logits: Float (n,).
        grades: Float (n,).
        sizes: Number of candidates of each query.

    Returns:
        Cross-entropy of each query, float (queries,), in nats.

    Source: Cao et al. 2007, Learning to Rank: From Pairwise Approach to Listwise Approach, section
    4; sentence-transformers' ListNetLoss.
    """
    return _list_cross_entropy(logits, _padded(grades, sizes, -torch.inf).softmax(dim=1), sizes)


def list_softmax(logits: Tensor, grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """Cross-entropy between each query's grades, scaled to sum 1, and the softmax of its logits.

    Args:
        logits: Float (n,).
        grades: Grade of each candidate, at least 0 and not all 0 in a query, float (n,).
        sizes: Number of candidates of each query.

    Returns:
        Cross-entropy of each query, float (queries,), in nats.

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
