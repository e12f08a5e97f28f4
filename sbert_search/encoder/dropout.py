"""Dropout that does not wait for its random numbers on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_LOWEST, _VALUES = -(2**15), 2**16  # of an int16


def dropout(states: Tensor, share: float, training: bool) -> Tensor:
    """Set a share of the states to 0 and scale the rest, so that the mean stays.

    torch draws a number for each element on the CPU, one after another; here one draw of its
    generator serves four, at 16 bits each, so ``share`` is rounded to a multiple of 1/65,536.

    Args:
        states: Of any shape.
        share: Below 1.
        training: Whether anything is to be dropped.

    Source: Srivastava et al. 2014, Dropout, JMLR 15.
    """
    if not training or not share:
        return states
    if states.device.type != "cpu":
        return F.dropout(states, share)
    dropped = round(share * _VALUES)
    n_draws = -(-states.numel() // 4)
    draws = torch.empty(n_draws, dtype=torch.int64).random_(-(2**63), None)  # all 64 bits
    kept = draws.view(torch.int16)[: states.numel()].view(states.shape) >= _LOWEST + dropped
    scale = states.new_tensor(_VALUES / (_VALUES - dropped))
    return states * torch.where(kept, scale, scale.new_zeros(()))
