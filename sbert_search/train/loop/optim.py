"""AdamW with clipped gradients, and without weight decay of biases and norms.

On a CPU, only the rows of large embedding tables that need it are computed, since most rows of a
word table get no gradient in a step. Rows without any gradient since the start of a run have
moments of 0, so AdamW only applies weight decay to them. The updated weights have the same bits as
those of torch's AdamW. See "Word tables are updated row by row on a CPU" in docs/decisions.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sbert_search.declared import Bounds, check
from sbert_search.errors import CheckpointError

# Names of the parameters of an `Encoder` inside a model.
_ENCODER = re.compile(r"(^|\.)encoder\.")
_BLOCK = re.compile(r"(?:^|(?P<model>.*)\.)encoder\.blocks\.(?P<number>\d+)\.")
_EMBEDDINGS = re.compile(r"(?:^|(?P<model>.*)\.)encoder\.(embeddings|distances)\.")

_Amount = Annotated[float, Bounds(0, below=math.inf)]
_Decay = Annotated[float, Bounds(0, below=1)]
_Factor = Annotated[float, Bounds(above=0, below=math.inf)]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """AdamW; the defaults are fine-tuning values of BERT, except ``eps``, which is torch's default.

    Source: Devlin et al. 2019, appendices A.2 and A.3 (arXiv:1810.04805). ``clip``: BERT's code.
    """

    lr: _Amount = 2e-5  # learning rate after the warm-up
    beta1: _Decay = 0.9  # decay of the mean of the gradients
    beta2: _Decay = 0.999  # decay of the mean of their squares
    eps: _Amount = 1e-8  # added to the root of the mean of the squares
    weight_decay: _Amount = 0.01  # weight decay of matrices; biases and norms have none
    clip: _Amount = 1.0  # maximum norm of the whole gradient; 0 turns clipping off
    # Learning rate of a block, divided by that of the block above it.
    layer_decay: Annotated[float, Bounds(above=0, high=1)] = 1.0
    head_factor: _Factor = 1.0  # the learning rate outside the encoder is this times lr

    def __post_init__(self) -> None:
        check(self, table="optim.")


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Make AdamW over the trainable parameters, in groups of equal weight decay and learning rate.

    Parameters of one dimension (biases, norms, scales) have no weight decay. The value ``factor``
    of a group is that of `learning_rate_factors`.
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

    It is 1 for the last block of an encoder, and for each other block that of the block above it,
    times ``layer_decay``. The embeddings count as the block below the first one. Other layers of an
    encoder, such as a pooler, have 1; parameters outside the encoders have ``head_factor``. The
    blocks of each encoder of a model are counted on their own.

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
    """Return the norm of all gradients, a scalar tensor, not finite if any gradient is not.

    ``further`` are values of gradients that `TableSteps.take_gradients` removed from the model.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return nn.utils.get_total_norm([*gradients, *further])


def clip_divisor(norm: Tensor, max_norm: float) -> Tensor | None:
    """Return what to divide the gradients by, a float32 scalar, or None; ``max_norm`` 0: None."""
    if not max_norm:
        return None
    divisor = (norm + 1e-6) / max_norm  # as in torch.nn.utils.clip_grads_with_norm_
    return divisor.float() if divisor > 1 else None


def clipped_step(optimizer: torch.optim.AdamW, norm: Tensor, max_norm: float) -> None:
    """Update the weights by gradients scaled to a norm of at most ``max_norm``; 0: not scaled."""
    if not max_norm:
        optimizer.step()
    elif norm.device.type == "cpu" and optimizer.defaults["fused"]:
        # The kernel scales a gradient while it reads it, which saves a pass over all gradients.
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
    """Load the tensors that `optimizer_tensors` returned into an optimizer."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        slot, _, name = key.partition("/")
        parameter = parameters.get(name)
        if parameter is None or (value.ndim and value.shape != parameter.shape):
            raise CheckpointError(
                f"The optimizer state {key} {tuple(value.shape)} fits no parameter of this model."
            )
        optimizer.state[parameter][slot] = value.to(parameter.device, copy=True)


_LARGE = 1 << 20  # elements of the smallest large table; smaller dense gradients cost little
_BLOCK_ROWS = 64  # rows that are updated together
_Register = Callable[[Callable[[Tensor], None]], RemovableHandle]  # untyped in torch
_MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's names of the means of gradients and of squares


class TableSteps:
    """Updates the large embedding tables of a model from sparse gradients.

    A table whose weights a linear layer uses too, such as the output layer of masked-language
    modelling, gets a dense gradient and is left to the optimizer.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = (module for module in model.modules() if isinstance(module, nn.Embedding))
        self._tables = [module for module in modules if module.weight.numel() >= _LARGE]
        self._weights = [
            w for w in dict.fromkeys(t.weight for t in self._tables) if w.requires_grad
        ]
        self._updates: dict[Tensor, _Update] = {}

    @contextmanager
    def sparse_gradients(self) -> Iterator[None]:
        """Return a context in which backward passes give sparse gradients of the tables."""
        before = [table.sparse for table in self._tables]
        with ExitStack() as stack:
            for weight in self._weights:
                register = cast(_Register, weight.register_post_accumulate_grad_hook)
                stack.callback(register(_join_rows).remove)
            for table in self._tables:
                table.sparse = True
            try:
                yield
            finally:
                for table, sparse in zip(self._tables, before, strict=True):
                    table.sparse = sparse

    def take_gradients(self) -> dict[Tensor, Tensor]:
        """Remove and return the sparse gradients, so that the optimizer skips these tables."""
        taken = {}
        for weight in self._weights:
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                taken[weight] = weight.grad.coalesce()
                weight.grad = None
            else:
                # The optimizer updates all rows, so `_Update` must find the active blocks again.
                self._updates.pop(weight, None)
        return taken

    @torch.no_grad()
    def step(
        self,
        optimizer: torch.optim.AdamW,
        gradients: Mapping[Tensor, Tensor],
        divisor: Tensor | None,
    ) -> None:
        """Update the tables by one step of AdamW, from gradients of `take_gradients`.

        The fused optimizer has the settings and the moments; ``divisor`` is from `clip_divisor`.
        """
        for weight, gradient in gradients.items():
            state: dict[str, Tensor] = optimizer.state[weight]
            if not state:  # the first step: the state with which AdamW begins
                state["step"] = torch.zeros((), dtype=torch.float32)
                state |= {name: torch.zeros_like(weight, requires_grad=False) for name in _MOMENTS}
            if weight not in self._updates:
                self._updates[weight] = _Update(weight, state)
            groups = optimizer.param_groups
            settings = next(g for g in groups if any(p is weight for p in g["params"]))
            self._updates[weight].step(gradient, settings, divisor)


def _join_rows(weight: Tensor) -> None:
    """Sum the rows of equal tokens if a sparse gradient has more rows than its table."""
    if weight.grad is not None and weight.grad.is_sparse and weight.grad._nnz() > len(weight):
        weight.grad = weight.grad.coalesce()


class _Update:
    """The update of one table, by blocks of rows, active from their first gradient on."""

    def __init__(self, weight: Tensor, state: Mapping[str, Tensor]) -> None:
        self._weight, self._state = weight, state
        self._gradient = torch.zeros_like(weight, requires_grad=False)  # 0 between two steps
        # The moments of the blocks that are not active are 0.
        self._active = np.zeros(-(-len(weight) // _BLOCK_ROWS), dtype=np.bool_)
        for name in _MOMENTS:  # in a resumed run, some moments are not 0
            self._activate(state[name].any(dim=1).nonzero().flatten())

    def step(self, gradient: Tensor, group: Mapping[str, Any], divisor: Tensor | None) -> None:
        rows = gradient.indices()[0]
        self._gradient.index_copy_(0, rows, gradient.values())
        self._activate(rows)
        self._state["step"] += 1
        active, others = self._slices()
        exp_avg, exp_avg_sq = (self._state[name] for name in _MOMENTS)
        torch._fused_adamw_(
            [self._weight.data[some] for some in active],
            [self._gradient[some] for some in active],
            [exp_avg[some] for some in active],
            [exp_avg_sq[some] for some in active],
            [],
            [self._state["step"]] * len(active),
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
            found_inf=None if divisor is None else torch.zeros(()),
        )
        if others and group["weight_decay"]:
            decay = 1 - group["lr"] * group["weight_decay"]
            torch._foreach_mul_([self._weight.data[some] for some in others], decay)
        self._gradient.index_fill_(0, rows, 0.0)

    def _activate(self, rows: Tensor) -> None:
        self._active[rows.numpy() // _BLOCK_ROWS] = True

    def _slices(self) -> tuple[list[slice], list[slice]]:
        """Return a slice of rows for each run of active blocks, and one for each run of others."""
        ends = [*(np.flatnonzero(np.diff(self._active)) + 1), len(self._active)]
        found: tuple[list[slice], list[slice]] = ([], [])
        start = 0
        for end in ends:
            found[0 if self._active[start] else 1].append(
                slice(start * _BLOCK_ROWS, end * _BLOCK_ROWS)
            )
            start = end
        return found
