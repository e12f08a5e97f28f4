"""Large in-batch losses in the memory of a small batch.

The texts of a step are embedded in parts without keeping activations; the loss of all embeddings
gives the gradient of each; then every part is embedded again, from the same dropout, and takes its
share of that gradient back into the model. The result is the gradient of the direct step.

Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size (arXiv:2101.06983), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sbert_search.runtime.distributed import Ranks
from sbert_search.training.loop.gradients import LossTotals, StepContext
from sbert_search.training.loop.objective import Batch, InBatchObjective


def add_in_batch_gradients(
    model: nn.Module, objective: InBatchObjective, batches: Sequence[Batch], context: StepContext
) -> LossTotals:
    """Differentiate a loss over all embeddings of a step, on every rank and in every micro-batch.

    One micro-batch is embedded once, with its graph kept; several are embedded twice.
    """
    parts = []
    for number, batch in enumerate(batches):
        with context.forward(number), torch.set_grad_enabled(len(batches) == 1):
            parts.append(objective.embed(model, batch))
    own = torch.cat([part.detach().float() for part in parts])
    whole, place = context.ranks.gather(own)
    whole = whole.requires_grad_()
    losses = objective.loss(whole, _gather_targets(batches, context))
    counts = {name: float(count) for name, (_, count) in losses.sums.items()}
    torch.autograd.backward(losses.total(counts))
    assert whole.grad is not None
    gradients = torch.split(whole.grad[place], [len(part) for part in parts])
    if len(batches) == 1:
        torch.autograd.backward(parts[0], gradients[0].to(parts[0].dtype))
    else:
        for number, (batch, gradient) in enumerate(zip(batches, gradients, strict=True)):
            with context.forward(number):
                embeddings = objective.embed(model, batch)
            torch.autograd.backward(embeddings, gradient.to(embeddings.dtype))
    totals = LossTotals(Ranks())  # every rank has the loss of the whole step
    totals.add(losses)
    return totals


def _gather_targets(batches: Sequence[Batch], context: StepContext) -> Tensor | None:
    targets = [batch.targets for batch in batches if batch.targets is not None]
    return context.ranks.gather(torch.cat(targets).to(context.device))[0] if targets else None
