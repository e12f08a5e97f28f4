"""Running a model over many texts within what the device's memory and the process allow."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import Vectors
from sbert_search.errors import ModelError
from sbert_search.runtime.progress import Advance, note
from sbert_search.tokens.batching import token_batches

W = TypeVar("W")
Start = Callable[[NDArray[np.int64]], Callable[[], Vectors]]


class Started(NamedTuple):
    """Rows that are being computed, and what waits for their numbers."""

    rows: NDArray[np.int64]
    finish: Callable[[], Vectors]

    def land(self, out: Vectors) -> None:
        """Wait, and put the numbers where they belong."""
        out[self.rows] = self.finish()


def land_all(started: Iterable[Started], out: Vectors) -> Vectors:
    """Fill ``out``; each batch is started before the one before it is waited for."""
    flying: deque[Started] = deque()
    for batch in started:
        flying.append(batch)
        if len(flying) > 1:
            flying.popleft().land(out)
    for batch in flying:
        batch.land(out)
    return out


def launch_windows(
    windows: Iterable[tuple[NDArray[np.int64], W]],
    launch: Callable[[NDArray[np.int64], W], Iterator[Started]],
    advance: Advance,
) -> Iterator[Started]:
    """Start the steps of all windows, without a wait between two of them.

    Args:
        windows: Rows of some inputs, and the inputs tokenised.
        launch: Starts the steps of one window, whose rows count from 0.
        advance: Told the inputs of each window once they are started.
    """
    for rows, tokenized in windows:
        for step in launch(rows, tokenized):
            yield Started(rows[step.rows], step.finish)
        advance(len(rows))


class Steps:
    """Cuts inputs into batches by a budget of tokens, which shrinks when memory runs out.

    Attributes:
        budget: Tokens of one step.
        device: Where the model computes, for messages.
    """

    def __init__(self, budget: int, device: str) -> None:
        self.budget, self.device = budget, device
        self._pid = os.getpid()

    @property
    def window(self) -> int:
        """Texts to tokenise at a time: enough for a step of short ones."""
        return max(1024, self.budget // 16)

    def launch(
        self, lengths: NDArray[np.int32], start: Start, *, most: int | None = None
    ) -> Iterator[Started]:
        """Start the batches that rows make, one each time the next one is asked for.

        Args:
            lengths: Tokens of each input, (n,).
            start: Begins to compute some rows and returns what waits for their numbers, float32
                (rows, width); raises MemoryError when they are too many.
            most: Most inputs of a step; None: the budget alone decides.

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
        for batch in token_batches(lengths, self.budget, most=most):
            yield from self._start(batch, lengths, start)

    def _start(
        self, rows: NDArray[np.int64], lengths: NDArray[np.int32], start: Start
    ) -> Iterator[Started]:
        """Start one batch, in halves when it is too large."""
        try:
            finish = start(rows)
        except MemoryError as error:
            tokens = int(lengths[rows].sum())
            if len(rows) == 1:
                raise ModelError(
                    f"{self.device} has too little memory for one text of {tokens} tokens; use "
                    "another device or precision."
                ) from error
        else:
            yield Started(rows, finish)
            return
        self.budget = min(self.budget, max(1, tokens // 2))
        note(f"{self.device} is out of memory; now {self.budget:,} tokens a step.")
        for half in np.array_split(rows, 2):
            yield from self._start(half, lengths, start)
