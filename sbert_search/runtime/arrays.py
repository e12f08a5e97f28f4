"""Types of arrays, and operations on them, that several subpackages use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def distinct(values: Ints) -> Ints:
    """Return the distinct values, ascending, int64 (m,).

    `numpy.unique` is not used: its first call imports the subpackage of masked arrays, which would
    delay a search in a new process.
    """
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]
