"""Likelihood of a linear-chain conditional random field (CRF) over the tags of sequences.

A path gives each item of a sequence one tag. The score of a path is the sum of the emissions (the
scores that the model gives to each tag for its item), the transitions (a score for each two
neighbouring tags), the start score of the first tag, and the end score of the last tag.

Source: Lafferty, McCallum & Pereira 2001, Conditional Random Fields, section 3; Lample et al. 2016,
Neural Architectures for Named Entity Recognition, section 2.2 (arXiv:1603.01360).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ChainScores(NamedTuple):
    """The parts of a path's score that depend only on the tags, not on the items.

    Attributes:
        start: Score of each tag as the first one, float (labels,).
        transitions: Score of tag j directly after tag i, float (labels, labels).
        end: Score of each tag as the last one, float (labels,).
    """

    start: Tensor
    transitions: Tensor
    end: Tensor


def crf_negative_log_likelihood(
    emissions: Tensor, tags: Tensor, lengths: Tensor, chain: ChainScores
) -> Tensor:
    """Negative log-likelihood of the true path of each sequence among all paths.

    Args:
        emissions: Score of each tag for each item, float (n, longest, labels), with any finite
            values after the end of a sequence.
        tags: The true tags, int64 (n, longest), with any tag from 0 to labels - 1 after the end of
            a sequence.
        lengths: Number of items of each sequence, at least 1, int64 (n,).
        chain: Scores of starts, transitions and ends.

    Returns:
        Float32 (n,), in nats.
    """
    return log_partition(emissions, lengths, chain) - path_scores(emissions, tags, lengths, chain)


def log_partition(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Logarithm of the sum of exp(score) over all paths of each sequence; float32 (n,).

    It is computed by the forward algorithm. Arguments are those of `crf_negative_log_likelihood`.
    """
    emissions, transitions = emissions.float(), chain.transitions.float()
    # (n, labels): log of the sum of exp(score) over all paths so far that end in each tag.
    scores = chain.start.float() + emissions[:, 0]
    for step in range(1, emissions.shape[1]):
        longer = torch.logsumexp(scores.unsqueeze(2) + transitions, dim=1) + emissions[:, step]
        scores = torch.where((step < lengths).unsqueeze(1), longer, scores)
    return torch.logsumexp(scores + chain.end.float(), dim=1)


def path_scores(emissions: Tensor, tags: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Score of one path of each sequence; float32 (n,).

    Arguments are those of `crf_negative_log_likelihood`.
    """
    n, longest = tags.shape
    inside = torch.arange(longest, device=tags.device) < lengths.unsqueeze(1)
    emitted = emissions.float().gather(2, tags.unsqueeze(2)).squeeze(2)
    moved = chain.transitions.float()[tags[:, :-1], tags[:, 1:]]
    last = tags[torch.arange(n, device=tags.device), lengths - 1]
    return (
        (emitted * inside).sum(dim=1)
        + (moved * inside[:, 1:]).sum(dim=1)
        + chain.start.float()[tags[:, 0]]
        + chain.end.float()[last]
    )
