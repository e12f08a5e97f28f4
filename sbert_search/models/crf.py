"""A linear-chain CRF over the labels of tokens, and its likelihood.

A path gives each item of a sequence one tag. The score of a path is the sum of the emissions (the
scores that the model gives to each tag for its item), the transitions (a score for each two
neighbouring tags), the start score of the first tag, and the end score of the last tag.

Source: Lafferty, McCallum & Pereira 2001, Conditional Random Fields, section 3; Lample et al. 2016,
Neural Architectures for Named Entity Recognition, section 2.2 (arXiv:1603.01360).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.tag_schemes import Scheme, may_follow


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


_FORBIDDEN = -1e4  # score of forbidden labels and transitions; finite, so gradients are finite


class LinearChainCrf(nn.Module):
    """Scores of the first label, of the last label and of neighbouring labels of a sequence.

    Attributes:
        start: Score of each label as the first one, (labels,).
        transitions: Score of label j directly after label i, (labels, labels).
        end: Score of each label as the last one, (labels,).
    """

    def __init__(self, labels: Sequence[str], scheme: Scheme | None) -> None:
        """Start with scores of 0.

        Args:
            labels: The labels, in order.
            scheme: Scheme of the labels, which says which label may follow which; None: every label
                may follow every label.
        """
        super().__init__()
        n = len(labels)
        self.start = nn.Parameter(torch.zeros(n))
        self.transitions = nn.Parameter(torch.zeros(n, n))
        self.end = nn.Parameter(torch.zeros(n))
        allowed = np.ones((n + 1, n + 1), dtype=bool)
        if scheme is not None:
            ends = [*labels, None]  # None: before the first and after the last label
            allowed[:] = [[may_follow(one, other, scheme) for other in ends] for one in ends]
        self.register_buffer("allowed", torch.from_numpy(allowed), persistent=False)

    def chain(self) -> ChainScores:
        """Return the scores, with -10,000 for labels and transitions that the scheme forbids.

        A scheme can forbid a label at the start, at the end, or directly after another label.
        """
        allowed = self.get_buffer("allowed")
        return ChainScores(
            self.start.masked_fill(~allowed[-1, :-1], _FORBIDDEN),
            self.transitions.masked_fill(~allowed[:-1, :-1], _FORBIDDEN),
            self.end.masked_fill(~allowed[:-1, -1], _FORBIDDEN),
        )

    def loss(self, emissions: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
        """Compute `crf_negative_log_likelihood` of sequences; float32 (n,)."""
        return crf_negative_log_likelihood(emissions, labels, lengths, self.chain())

    @torch.no_grad()
    def decode(self, emissions: Tensor | NDArray[np.float32]) -> list[int]:
        """Find the path of the highest score of one sequence, by the Viterbi algorithm.

        Args:
            emissions: Score of each label of each item, float (items, labels).

        Returns:
            The index of the label of each item. Of several best paths, the one with the smallest
            last label is taken; of several such paths, the one with the smallest label before it,
            and so on.
        """
        start, moves, end = (part.float().cpu().numpy() for part in self.chain())
        given = emissions.float().cpu().numpy() if isinstance(emissions, Tensor) else emissions
        if not len(given):
            return []
        scores, before = start + given[0], list[NDArray[np.int64]]()
        for row in given[1:]:
            paths = scores[:, None] + moves
            before.append(paths.argmax(axis=0))
            scores = paths.max(axis=0) + row
        path = [int((scores + end).argmax())]
        for best in reversed(before):
            path.append(int(best[path[-1]]))
        return path[::-1]
