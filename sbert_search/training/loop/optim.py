"""AdamW as in BERT: no weight decay of biases and norms, clipped gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sbert_search.errors import CheckpointError, ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """AdamW; the defaults are the fine-tuning values of Devlin et al. 2019, appendix A.3."""

    lr: float = 2e-5  # learning rate after the warm-up
    beta1: float = 0.9  # decay of the mean of the gradients
    beta2: float = 0.999  # decay of the mean of their squares
    eps: float = 1e-8  # added to the root of that mean
    weight_decay: float = 0.01  # weight decay of matrices; biases and norms have none
    clip: float = 1.0  # maximum norm of the whole gradient; 0 turns clipping off

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay", "clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"optim.{name} is {getattr(self, name)}; it must be finite, and 0 or more."
                )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"optim.{name} is {getattr(self, name)}; it must be in [0, 1).")


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Make AdamW over the trainable parameters, in two groups.

    Parameters of one dimension are biases, norms and scales; they have no weight decay.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=all(p.device.type in ("cpu", "cuda") for p in trained),
    )


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Scale the gradients in place to a total norm of at most ``max_norm``; 0 turns this off.

    Returns:
        The norm before clipping, a scalar. It is not finite if any gradient is not finite.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if max_norm:
        parameters = [p for p in model.parameters() if p.grad is not None]
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the optimizer, named such as ``exp_avg/encoder.layer.0.weight``."""
    return {
        f"{slot}/{name}": value
        for name, parameter in model.named_parameters()
        for slot, value in sorted(optimizer.state.get(parameter, {}).items())
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Load the tensors that `optimizer_tensors` returned into an optimizer.

    Raises:
        CheckpointError: A tensor belongs to no parameter of this model, or has another shape.
    """
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        slot, _, name = key.partition("/")
        parameter = parameters.get(name)
        if parameter is None or (value.ndim and value.shape != parameter.shape):
            raise CheckpointError(
                f"The optimizer state {key} {tuple(value.shape)} fits no parameter of this model."
            )
        optimizer.state[parameter][slot] = value.to(parameter.device, copy=True)
