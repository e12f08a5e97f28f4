"""GradCache: the gradient of an in-batch loss over many texts, in the memory of a few texts.

An in-batch loss compares all texts of a step with each other. A micro-batch is a part of a step
that fits in memory. The gradient is computed in three stages:

1. Embed the texts of a step micro-batch by micro-batch, without keeping activations.
2. Compute the loss of all embeddings and its gradient with respect to each embedding.
3. Embed every micro-batch again, with the same dropout, and backpropagate the gradients of
   stage 2.

Without dropout, the result equals the gradient of one pass over the whole step, up to rounding.
Every rank (process of the run) computes the whole loss: see "In-batch losses are computed whole on
every rank" in docs/decisions.md.

Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size (arXiv:2101.06983), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sbert_search.base.distributed import Ranks
from sbert_search.training.loop.gradients import LossTotals, StepContext
from sbert_search.training.loop.objective import Batch, InBatchObjective


def add_in_batch_gradients(
    model: nn.Module, objective: InBatchObjective, batches: Sequence[Batch], context: StepContext
) -> LossTotals:
    """Add this rank's part of the gradient of an in-batch loss to the gradients of the model.

    The loss compares the embeddings of all ranks and micro-batches. Each rank backpropagates only
    through its own embeddings; the sum of the gradients over the ranks is the gradient of the loss.

    If there are several micro-batches, each is embedded twice. A single one is embedded once, and
    its autograd graph is kept.
    """
    parts = []
    for number, batch in enumerate(batches):
        with context.forward(number), torch.set_grad_enabled(len(batches) == 1):
            parts.append(objective.embed(model, batch))
    of_rank = torch.cat([part.detach().float() for part in parts])
    gathered, rows_of_rank = context.ranks.gather(of_rank)
    gathered = gathered.requires_grad_()
    losses = objective.loss(gathered, _gather_targets(batches, context))
    counts = {name: float(count) for name, (_, count) in losses.sums.items()}
    torch.autograd.backward(losses.total(counts))
    assert gathered.grad is not None
    gradients = torch.split(gathered.grad[rows_of_rank], [len(part) for part in parts])
    if len(batches) == 1:
        torch.autograd.backward(parts[0], gradients[0].to(parts[0].dtype))
    else:
        for number, (batch, gradient) in enumerate(zip(batches, gradients, strict=True)):
            with context.forward(number):
                embeddings = objective.embed(model, batch)
            torch.autograd.backward(embeddings, gradient.to(embeddings.dtype))
    totals = LossTotals(Ranks())  # not summed over ranks: each computed the whole loss
    totals.add(losses)
    totals.finite = [part.detach().isfinite().all() for part in parts]
    return totals


def _gather_targets(batches: Sequence[Batch], context: StepContext) -> Tensor | None:
    targets = [batch.targets for batch in batches if batch.targets is not None]
    return context.ranks.gather(torch.cat(targets).to(context.device))[0] if targets else None
