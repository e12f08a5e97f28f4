"""AdamW with clipped gradients, and without weight decay of biases and norms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from sbert_search.errors import CheckpointError, ConfigError

# Names of the parameters of an `Encoder` inside a model.
_ENCODER = re.compile(r"(^|\.)encoder\.")
_BLOCK = re.compile(r"(?:^|(?P<model>.*)\.)encoder\.blocks\.(?P<number>\d+)\.")
_EMBEDDINGS = re.compile(r"(?:^|(?P<model>.*)\.)encoder\.(embeddings|distances)\.")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """AdamW; the defaults are fine-tuning values of BERT, except ``eps``, which is torch's default.

    Source: Devlin et al. 2019, appendices A.2 and A.3 (arXiv:1810.04805). ``clip``: BERT's code.
    """

    lr: float = 2e-5  # learning rate after the warm-up
    beta1: float = 0.9  # decay of the mean of the gradients
    beta2: float = 0.999  # decay of the mean of their squares
    eps: float = 1e-8  # added to the root of the mean of the squares
    weight_decay: float = 0.01  # weight decay of matrices; biases and norms have none
    clip: float = 1.0  # maximum norm of the whole gradient; 0 turns clipping off
    layer_decay: float = 1.0  # learning rate of a block, divided by that of the block above it
    head_factor: float = 1.0  # the learning rate outside the encoder is this times lr

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay", "clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"optim.{name} is {getattr(self, name)}; it must be finite, and 0 or more."
                )
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(
                f"optim.layer_decay is {self.layer_decay}; it must be above 0, and at most 1."
            )
        if not 0 < self.head_factor < math.inf:
            raise ConfigError(
                f"optim.head_factor is {self.head_factor}; it must be finite, and above 0."
            )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"optim.{name} is {getattr(self, name)}; it must be in [0, 1).")


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Make AdamW over the trainable parameters, in groups of equal weight decay and learning rate.

    Parameters of one dimension are biases, norms and scales; they have no weight decay. The value
    ``factor`` of a group is the factor of its learning rate; see `learning_rate_factors`.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    factors = learning_rate_factors([name for name, _ in trained], config)
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for (_, parameter), factor in zip(trained, factors, strict=True):
        groups.setdefault((parameter.ndim >= 2, factor), []).append(parameter)
    return torch.optim.AdamW(
        [
            {
                "params": groups[is_matrix, factor],
                "weight_decay": config.weight_decay if is_matrix else 0.0,
                "lr": config.lr * factor,
                "factor": factor,
            }
            for is_matrix, factor in sorted(groups, reverse=True)
        ],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=all(p.device.type in ("cpu", "cuda") for _, p in trained),
    )


def learning_rate_factors(names: Sequence[str], config: OptimConfig) -> list[float]:
    """Return the factor of the learning rate of each parameter.

    The factor of the last block of an encoder is 1. The factor of each other block is that of the
    block above it, times ``layer_decay``. The embeddings count as the block below the first one.
    Other layers of an encoder, such as a pooler, have the factor 1, and parameters outside the
    encoders have the factor ``head_factor``.

    A model with two encoders, such as ELECTRA's generator and discriminator, may have different
    numbers of blocks in them, so the blocks of each encoder are counted on their own.

    Source: Howard & Ruder 2018, ULMFiT, section 3.2, discriminative fine-tuning (arXiv:1801.06146).
    """
    top: dict[str | None, int] = {}  # number of the last block by the name of the encoder's model
    for found in filter(None, map(_BLOCK.match, names)):
        top[found["model"]] = max(int(found["number"]), top.get(found["model"], -1))

    def factor(name: str) -> float:
        if found := _BLOCK.match(name):
            return config.layer_decay ** (top[found["model"]] - int(found["number"]))
        if found := _EMBEDDINGS.match(name):
            return config.layer_decay ** (top.get(found["model"], -1) + 1)
        return 1.0 if _ENCODER.search(name) else config.head_factor

    return [factor(name) for name in names]


class _Scaled(Protocol):
    """Attributes that torch's fused optimizers read, which `torch.amp.GradScaler` sets."""

    grad_scale: Tensor | None  # each gradient is divided by it
    found_inf: Tensor | None  # 1: the step is left out


def gradient_norm(model: nn.Module, further: Sequence[Tensor] = ()) -> Tensor:
    """Return the norm of the vector of all gradients, a scalar tensor.

    It is not finite if any gradient is not finite.

    Args:
        model: The model with its gradients.
        further: Values of the gradients that `TableSteps.take_gradients` removed from the model.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return nn.utils.get_total_norm([*gradients, *further])


def clip_divisor(norm: Tensor, max_norm: float) -> Tensor | None:
    """Return the divisor that reduces the norm of all gradients to ``max_norm``.

    Args:
        norm: The norm of all gradients.
        max_norm: Largest norm; 0 turns clipping off.

    Returns:
        A float32 scalar; None: the norm is small enough, or clipping is off.
    """
    if not max_norm:
        return None
    divisor = (norm + 1e-6) / max_norm  # as in torch.nn.utils.clip_grads_with_norm_
    return divisor.float() if divisor > 1 else None


def clipped_step(optimizer: torch.optim.AdamW, norm: Tensor, max_norm: float) -> None:
    """Update the weights by gradients that are scaled to a norm of at most ``max_norm``.

    The fused kernel on a CPU scales a gradient while it reads it. A separate pass for the scaling
    would read and write all gradients once more, even if their norm is small enough.

    Args:
        optimizer: The optimizer of the parameters that have the gradients.
        norm: The norm of all gradients.
        max_norm: Largest norm; 0 turns clipping off.
    """
    if not max_norm:
        optimizer.step()
    elif norm.device.type == "cpu" and optimizer.defaults["fused"]:
        scaled = cast(_Scaled, optimizer)
        if (divisor := clip_divisor(norm, max_norm)) is not None:
            scaled.grad_scale, scaled.found_inf = divisor, torch.zeros(())
        try:
            optimizer.step()
        finally:
            scaled.grad_scale = scaled.found_inf = None
    else:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        optimizer.step()


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's tensors, named such as ``exp_avg/encoder.embeddings.word.weight``."""
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
