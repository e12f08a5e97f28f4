"""Running a model over many texts within what the device's memory and the process allow."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import Vectors
from sbert_search.errors import ModelError
from sbert_search.runtime.progress import note
from sbert_search.tokens.batching import token_batches

Compute = Callable[[NDArray[np.int64]], Vectors]


class Steps:
    """Cuts inputs into batches by a budget of tokens, which shrinks when memory runs out.

    Attributes:
        budget: Tokens of one step.
        device: Where the model computes, for messages.
    """

    def __init__(self, budget: int, device: str) -> None:
        self.budget, self.device = budget, device
        self._pid = os.getpid()

    def run(
        self, lengths: NDArray[np.int32], width: int, compute: Compute, *, most: int | None = None
    ) -> Vectors:
        """Compute all rows.

        Args:
            lengths: Tokens of each input, (n,).
            width: Numbers that an input becomes.
            compute: Gives the numbers of some rows, float32 (rows, width); raises MemoryError when
                they are too many.
            most: Most inputs of a step; None: the budget alone decides.

        Returns:
            Float32 (n, width), rows in input order.

        Raises:
            ModelError: The process was forked after the model was loaded, or the device has too
                little memory for a single input.
        """
        if os.getpid() != self._pid:
            raise ModelError(
                f"The model was loaded in process {self._pid}, of which this one is a fork; "
                "threads do not survive it. Start processes with the method spawn, and load the "
                "model there."
            )
        out = np.empty((len(lengths), width), dtype=np.float32)
        for rows in token_batches(lengths, self.budget, most=most):
            self._fill(out, rows, lengths, compute)
        return out

    def _fill(
        self, out: Vectors, rows: NDArray[np.int64], lengths: NDArray[np.int32], compute: Compute
    ) -> None:
        """Compute one batch, in halves when it is too large."""
        try:
            out[rows] = compute(rows)
            return
        except MemoryError as error:
            tokens = int(lengths[rows].sum())
            if len(rows) == 1:
                raise ModelError(
                    f"{self.device} has too little memory for one text of {tokens} tokens; use "
                    "another device or precision."
                ) from error
        self.budget = min(self.budget, max(1, tokens // 2))
        note(f"{self.device} is out of memory; now {self.budget:,} tokens a step.")
        for half in np.array_split(rows, 2):
            self._fill(out, half, lengths, compute)
