"""Choose the precision of a run's matrix products; the weights stay in float32."""

from __future__ import annotations

import torch
from torch import nn

from sbert_search.base.device import DTYPES, Precision, resolve_precision
from sbert_search.base.distributed import Ranks
from sbert_search.base.progress import detail
from sbert_search.base.verdicts import Verdict
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.precision import training_precision
from sbert_search.training.loop.batching import Batches
from sbert_search.training.loop.checkpoint import Checkpoint


def choose_precision(
    precision: Precision,
    device: torch.device,
    model: nn.Module,
    batches: Batches,
    ranks: Ranks,
    resumed: Checkpoint | None,
) -> tuple[torch.dtype, Verdict | None]:
    """Choose the dtype of matrix products; on a CPU, "auto" is the faster of fp32 and bf16.

    The first rank measures for all ranks. With "auto" on a CPU, a resumed run does not measure: it
    keeps the precision of its checkpoint, so that it ends with the weights of an uninterrupted run.
    In all other cases the setting and the device decide, and `resume.restore` refuses a checkpoint
    of another precision, unless the run may resume inexactly.

    Returns:
        The dtype, and the measurement that chose it; None: this process measured nothing.
    """
    dtype = resolve_precision(precision, device)
    if precision != "auto" or device.type != "cpu":
        return dtype, None
    if resumed is not None:
        return _of_checkpoint(resumed) or dtype, None
    verdict = _measure(model, batches, ranks) if ranks.first else None
    if verdict is not None:
        detail(f"Precision {verdict}.")
        dtype = DTYPES[verdict.choice]
    (chosen,) = ranks.from_first([float(dtype == torch.bfloat16)])
    return torch.bfloat16 if chosen else torch.float32, verdict


def _of_checkpoint(checkpoint: Checkpoint) -> torch.dtype | None:
    circumstances = checkpoint.state.get("circumstances")
    saved = circumstances.get("precision") if isinstance(circumstances, dict) else None
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(str(saved))


def _measure(model: nn.Module, batches: Batches, ranks: Ranks) -> Verdict | None:
    """Measure the time of a training step of one block of the largest encoder, in fp32 and bf16.

    The measured step has about as many tokens as a micro-batch of one rank of this run, or fewer if
    these would take too long. Its longest texts have about the mean number of tokens of a row.

    Returns:
        The measurement; None if the model has no encoder, or its blocks are so small that the
        precision does not matter.
    """
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    if not encoders:
        return None
    config, length = batches.config, float(batches.lengths.mean())
    tokens = (config.micro_size or config.size) * (length if config.unit == "rows" else 1.0)
    if config.micro_size is None:
        tokens /= ranks.world
    largest = max(encoders, key=lambda encoder: sum(p.numel() for p in encoder.parameters()))
    return training_precision(largest, tokens=round(tokens), length=round(length))
