"""Find heads that can be removed: estimate their importance, remove some, and measure again.

Source: Michel et al. 2019, Are Sixteen Heads Really Better than One?, section 4.1
(arXiv:1905.10650).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sbert_search.base.progress import progress
from sbert_search.evaluate.metrics.isotropy import Array
from sbert_search.lab.attention.gates import gated
from sbert_search.lab.attention.objectives import Objective

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)  # shares of heads removed in the measurements
TOLERANCE = 0.01  # largest relative loss of score at which heads count as removable


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """The score without some heads.

    Attributes:
        removed: Number of heads removed, the least important first.
        score: The score without them.
    """

    removed: int
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruning:
    """The importance of heads, and the score without the least important ones.

    Attributes:
        metric: Name of the score, such as MLM loss.
        higher_is_better: Whether a higher score is better.
        importance: Mean absolute derivative of the loss with respect to the gate of each head, by
            layer; scaled so that the squares of a layer add up to 1.
        order: Layer and head, counted from 1, of each head, the least important first.
        removals: Scores for growing numbers of removed heads; the first has all heads.
    """

    metric: str
    higher_is_better: bool
    importance: tuple[tuple[float, ...], ...]
    order: tuple[tuple[int, int], ...]
    removals: tuple[Removal, ...]

    @property
    def removable(self) -> int:
        """The largest number of removed heads at which the score is at most 1 % worse."""
        sign = 1.0 if self.higher_is_better else -1.0
        whole = self.removals[0].score
        lowest = sign * whole - TOLERANCE * abs(whole)
        kept = [each.removed for each in self.removals if sign * each.score >= lowest]
        return max(kept, default=0)


def head_importance(objective: Objective) -> Array:
    """Mean absolute derivative of an example's loss with respect to the gate of each head.

    Returns:
        Float64 (layers, heads), not scaled.
    """
    encoder = objective.encoder
    layers, heads = len(encoder.config.block_order), encoder.config.heads
    device = encoder.embeddings.word.weight.device
    total, examples = torch.zeros(layers, heads, device=device), 0
    with progress("Estimating importance", None, "examples") as advance:
        for batch in objective.fit_batches():
            gates = torch.ones(layers, batch.examples, heads, device=device, requires_grad=True)
            with gated(encoder, gates, batch.groups), torch.enable_grad():
                loss = batch.losses().sum()
            (slopes,) = torch.autograd.grad(loss, [gates])
            total += slopes.abs().sum(1)
            examples += batch.examples
            advance(batch.examples)
    importance: Array = (total / examples).double().cpu().numpy()
    return importance


def prune(objective: Objective) -> Pruning:
    """Estimate the importance of all heads, and measure the score without the least important."""
    raw = head_importance(objective)
    scaled = raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-30)
    ascending = np.argsort(scaled, axis=None, kind="stable")
    encoder = objective.encoder
    device = encoder.embeddings.word.weight.device
    numbers = sorted({round(share * scaled.size) for share in SHARES})
    removals = []
    with progress("Removing heads", len(numbers), "steps") as advance:
        for removed in numbers:
            gates = torch.ones(scaled.size, device=device)
            gates[torch.from_numpy(ascending[:removed].copy())] = 0
            with gated(encoder, gates.view(scaled.shape)):
                removals.append(Removal(removed=removed, score=objective.score()))
            advance(1)
    places = (np.unravel_index(place, scaled.shape) for place in ascending)
    return Pruning(
        metric=objective.name,
        higher_is_better=objective.higher_is_better,
        importance=tuple(tuple(layer) for layer in scaled.tolist()),
        order=tuple((int(layer) + 1, int(head) + 1) for layer, head in places),
        removals=tuple(removals),
    )
