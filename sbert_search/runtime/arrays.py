"""Short names for array types that several subpackages use in their signatures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
