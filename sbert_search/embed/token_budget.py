"""Cut inputs into batches by a token budget, and start a batch before the previous has finished.

A token budget is the maximum number of tokens in a batch.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Advance, warn
from sbert_search.embed.arguments import check_integer
from sbert_search.embed.protocol import Vectors
from sbert_search.errors import ModelError
from sbert_search.text.tokens.batching import token_batches

W = TypeVar("W")
Start = Callable[[NDArray[np.int64]], Callable[[], Vectors]]


class StartedBatch(NamedTuple):
    """A batch that is being computed."""

    # Indices of its inputs, those of the window or, from `launch_windows`, of all.
    rows: NDArray[np.int64]
    finish: Callable[[], Vectors]  # waits for the result, a vector or scores for each input

    def collect(self, out: Vectors) -> None:
        """Wait for the result and write it to the rows of ``out``."""
        out[self.rows] = self.finish()


def collect_all(started: Iterable[StartedBatch], out: Vectors) -> Vectors:
    """Fill ``out`` with the results; start each batch before waiting for the previous batch."""
    # The device computes one batch while the CPU prepares the next.
    in_flight: deque[StartedBatch] = deque()
    for batch in started:
        in_flight.append(batch)
        if len(in_flight) > 1:
            in_flight.popleft().collect(out)
    for batch in in_flight:
        batch.collect(out)
    return out


def launch_windows(
    windows: Iterable[tuple[NDArray[np.int64], W]],
    launch: Callable[[NDArray[np.int64], W], Iterator[StartedBatch]],
    advance: Advance,
) -> Iterator[StartedBatch]:
    """Start the batches of all windows without waiting between windows.

    A window is a group of inputs that are tokenised together: their indices among all inputs, and
    the tokenised inputs. ``launch`` starts the batches of one window; their `Started.rows` are
    indices among the inputs of the window. ``advance`` is called with the number of inputs of a
    window after all its batches are started.
    """
    for rows, tokenized in windows:
        for step in launch(rows, tokenized):
            yield StartedBatch(rows[step.rows], step.finish)
        advance(len(rows))


class BatchLauncher:
    """Cuts inputs into batches and starts them; the token budget shrinks when memory runs out."""

    def __init__(self, budget: int, device: str) -> None:
        # A single input may have more tokens than the budget. The device is for messages.
        self.budget, self.device = budget, device
        self._pid = os.getpid()

    @property
    def window(self) -> int:
        """Number of inputs to tokenise together: at least 1,024, and a batch of 16-token inputs."""
        return max(1024, self.budget // 16)

    def launch(
        self, lengths: NDArray[np.int32], start: Start, *, most: int | None = None
    ) -> Iterator[StartedBatch]:
        """Cut inputs into batches and start one batch each time the iterator is advanced.

        ``start`` gets the indices of the inputs of a batch. It starts their computation and returns
        a function that waits for the results, float32 (batch, width). ``start`` raises MemoryError
        if the batch needs too much memory; a MemoryError of the returned function would not be
        handled. ``most`` is the maximum of inputs of a batch; None: only the budget limits it.
        """
        if os.getpid() != self._pid:
            raise ModelError(
                f"The model was loaded in process {self._pid}, and this process is a fork of it; "
                "the model's threads do not survive a fork. Start processes with the method spawn, "
                "and load the model there."
            )
        if most is not None:
            check_integer("batch_size", most)
        waiting = deque(token_batches(lengths, self.budget, most=most))
        while waiting:
            before = self.budget
            yield from self._start(waiting.popleft(), lengths, start)
            if waiting and self.budget < before:  # memory ran out: the other batches are too large
                rest = np.concatenate(waiting)
                waiting = deque(
                    rest[part] for part in token_batches(lengths[rest], self.budget, most=most)
                )

    def _start(
        self, rows: NDArray[np.int64], lengths: NDArray[np.int32], start: Start
    ) -> Iterator[StartedBatch]:
        """Start one batch; if memory runs out, halve the batch and lower the budget."""
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
            yield StartedBatch(rows, finish)
            return
        self.budget = min(self.budget, max(1, tokens // 2))
        warn(
            f"{self.device} ran out of memory; batches now have at most about "
            f"{self.budget:,} tokens."
        )
        for half in np.array_split(rows, 2):
            yield from self._start(half, lengths, start)
