"""A linear-chain CRF over the labels of tokens; a tag scheme can forbid some transitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.losses.crf import ChainScores, crf_negative_log_likelihood
from sbert_search.tag_schemes import Scheme, may_follow

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
