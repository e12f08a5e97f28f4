"""AdamW steps on a CPU that compute only the rows of large embedding tables that need it.

Most rows of a word table get no gradient in a step. A dense gradient of the words of BERT in 384
dimensions has 47 MB, which each step would allocate, set to 0 and read. Rows without any gradient
since the start of a run have moments of 0, so AdamW only applies weight decay to them. The updated
weights have the same bits as those of torch's AdamW from the dense gradient.
docs/decisions.md: "Word tables are updated row by row on a CPU".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_LARGE = 1 << 20  # elements of the smallest large table; smaller dense gradients cost little
_BLOCK = 64  # rows that are updated together
_Register = Callable[[Callable[[Tensor], None]], RemovableHandle]  # untyped in torch
_MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's names of the means of gradients and of squares


class TableSteps:
    """Updates the large embedding tables of a model from sparse gradients.

    A table whose weights a linear layer uses too, such as the output layer of masked-language
    modelling, gets a dense gradient and is left to the optimizer.
    """

    def __init__(self, model: nn.Module) -> None:
        """Find the embedding tables of a model with at least `_LARGE` elements."""
        modules = (module for module in model.modules() if isinstance(module, nn.Embedding))
        self._tables = [module for module in modules if module.weight.numel() >= _LARGE]
        self._weights = [
            w for w in dict.fromkeys(t.weight for t in self._tables) if w.requires_grad
        ]
        self._updates: dict[Tensor, _Update] = {}

    @contextmanager
    def sparse_gradients(self) -> Iterator[None]:
        """Return a context in which backward passes give sparse gradients of the tables.

        The sum of the sparse gradients of several passes needs little more memory than a dense
        gradient.
        """
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
        """Remove the sparse gradients from the tables, so that the optimizer skips these tables.

        Returns:
            For each table with a sparse gradient, this gradient; each row occurs once.
        """
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
        """Update the tables by one step of AdamW.

        Args:
            optimizer: The fused optimizer, which has the settings and the moments of the tables.
            gradients: As returned by `take_gradients`.
            divisor: The number from `clip_divisor` by which each gradient is divided; None:
                gradients stay as they are.
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
    """The update of one table, by blocks of rows.

    A block is active from its first gradient on. The moments of the other blocks are 0.
    """

    def __init__(self, weight: Tensor, state: Mapping[str, Tensor]) -> None:
        self._weight, self._state = weight, state
        self._gradient = torch.zeros_like(weight, requires_grad=False)  # 0 between two steps
        self._active = np.zeros(-(-len(weight) // _BLOCK), dtype=np.bool_)
        for name in _MOMENTS:  # in a resumed run, some moments are not 0
            self._activate(state[name].any(dim=1).nonzero().flatten())

    def step(self, gradient: Tensor, group: Mapping[str, Any], divisor: Tensor | None) -> None:
        """Take one AdamW step with the settings ``group``, the parameter group of the table."""
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
        self._active[rows.numpy() // _BLOCK] = True

    def _slices(self) -> tuple[list[slice], list[slice]]:
        """Return a slice of rows for each run of active blocks, and one for each run of others."""
        ends = [*(np.flatnonzero(np.diff(self._active)) + 1), len(self._active)]
        found: tuple[list[slice], list[slice]] = ([], [])
        start = 0
        for end in ends:
            found[0 if self._active[start] else 1].append(slice(start * _BLOCK, end * _BLOCK))
            start = end
        return found
