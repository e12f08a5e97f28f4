"""Dropout with fast random numbers on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_LOWEST, _VALUES = -(2**15), 2**16  # lowest value, and number of values, of an int16


def dropout(states: Tensor, p: float, training: bool) -> Tensor:
    """Set elements to 0 with probability p and scale the others, so that the mean stays the same.

    Args:
        states: Tensor of any shape.
        p: Probability, below 1. On a CPU it is rounded to a multiple of 1/65,536, at most
            65,535/65,536.
        training: Whether to apply dropout; if false, the states are returned unchanged.

    Source: Srivastava et al. 2014, Dropout, JMLR 15.
    """
    if not training or not p:
        return states
    if states.device.type != "cpu":
        return F.dropout(states, p)
    return states * draw_factors(states.shape, p, states.dtype)


def draw_factors(shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
    """Draw the factors of dropout on a CPU: 0 with probability p, otherwise 1 / (1 - p).

    torch draws one random number for each element. Here an SFC64 generator draws 64-bit numbers,
    and each number serves four elements, with 16 bits for each. The seed comes from torch's
    generator.
    """
    size = math.prod(shape)
    # An element is kept with a probability of at least 1/65,536, even for p = 0.999995.
    dropped = min(round(p * _VALUES), _VALUES - 1)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    draws = np.random.SFC64(seed).random_raw(-(-size // 4)).view(np.int16)
    # The comparison is in place and keeps the type int16. A comparison that returns bool would not
    # use vector instructions.
    kept = torch.from_numpy(draws)[:size].ge_(_LOWEST + dropped)  # int16, 1 or 0
    return kept.to(dtype).mul_(_VALUES / (_VALUES - dropped)).view(tuple(shape))
