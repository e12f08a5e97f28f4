"""Losses of a cross-encoder's logits for a query's candidates; groups stand one behind another.

A term depends on one query alone, so batches in parts and on several ranks add up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.nn.utils.rnn import pad_sequence


def ordered_pairs(grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """Find which candidate of a query should be above which other.

    Args:
        grades: Relevance of each candidate, float (n,).
        sizes: Candidates of each query; they add up to n.

    Returns:
        Bool (queries, longest, longest), [q, i, j]: i has a higher grade than j.
    """
    padded = _padded(grades, sizes, float("nan"))  # nothing is above or below nan
    return padded.unsqueeze(2) > padded.unsqueeze(1)


def pairwise_logistic(logits: Tensor, grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """Put each candidate above each one of lower grade.

    Args:
        logits: Float (n,).
        grades: Float (n,).
        sizes: Candidates of each query.

    Returns:
        log(1 + exp(lower's logit - higher's)) of each of `ordered_pairs`, float (pairs,).

    Source: Burges et al. 2005, Learning to Rank using Gradient Descent (RankNet), section 3; in
    nats, where sentence-transformers' RankNetLoss counts bits by default.
    """
    padded = _padded(logits, sizes, 0.0)
    ahead = padded.unsqueeze(2) - padded.unsqueeze(1)
    return softplus(-ahead[ordered_pairs(grades, sizes)])


def list_net(logits: Tensor, grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """Match the distribution over candidates that a softmax makes of their grades.

    Args:
        logits: Float (n,).
        grades: Float (n,).
        sizes: Candidates of each query.

    Returns:
        Cross-entropy of each query's list, float (queries,).

    Source: Cao et al. 2007, Learning to Rank: From Pairwise Approach to Listwise Approach, section
    4; sentence-transformers' ListNetLoss.
    """
    return _list_cross_entropy(logits, _padded(grades, sizes, -torch.inf).softmax(dim=1), sizes)


def list_softmax(logits: Tensor, grades: Tensor, sizes: Sequence[int]) -> Tensor:
    """Find the relevant candidates of each query among all of its candidates.

    Args:
        logits: Float (n,).
        grades: Weight of each candidate, at least 0 and not all 0 in a query, (n,).
        sizes: Candidates of each query.

    Returns:
        Cross-entropy of each query's list, float (queries,).

    Source: Gao, Dai & Callan 2021, Rethink Training of BERT Rerankers, section 3.2, localized
    contrastive estimation (arXiv:2101.08751).
    """
    weights = _padded(grades, sizes, 0.0)
    return _list_cross_entropy(logits, weights / weights.sum(dim=1, keepdim=True), sizes)


def _list_cross_entropy(logits: Tensor, wanted: Tensor, sizes: Sequence[int]) -> Tensor:
    padded = _padded(logits, sizes, torch.finfo(logits.dtype).min)
    return -(wanted * padded.log_softmax(dim=1)).sum(dim=1)


def _padded(values: Tensor, sizes: Sequence[int], fill: float) -> Tensor:
    return pad_sequence(
        list(torch.split(values, list(sizes))), batch_first=True, padding_value=fill
    )
