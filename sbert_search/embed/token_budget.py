"""Cut inputs into batches by a token budget, and start a batch before the previous has finished.

A token budget is the maximum number of tokens in a batch.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Advance, progress, warn
from sbert_search.base.threads import prefetch
from sbert_search.embed.arguments import check_integer
from sbert_search.embed.protocol import Vectors
from sbert_search.errors import ModelError
from sbert_search.text.tokens.batching import token_batches

if TYPE_CHECKING:
    from sbert_search.embed.batch_autotune import BudgetSearch

Rows = NDArray[np.int64]
Finish = Callable[[], Vectors]  # waits for results, float32 (batch, width)


class Tokenized(Protocol):
    """Tokenised inputs."""

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each input, int32 (n,)."""


W = TypeVar("W", bound=Tokenized)


class StartedBatch(NamedTuple):
    """A batch that is being computed."""

    rows: Rows  # indices of its inputs
    finish: Finish  # the result is a vector or scores for each input


class BatchLauncher:
    """Cuts inputs into batches and starts them; the token budget shrinks when memory runs out."""

    def __init__(self, budget: int, device: str, search: BudgetSearch | None = None) -> None:
        # A single input may have more tokens than the budget. The device is for messages. The
        # search, if any, measures other budgets.
        self.budget, self.device, self._search = budget, device, search
        self._pid = os.getpid()

    @property
    def window(self) -> int:
        """Number of inputs to tokenise together: at least 1,024, and a batch of 16-token inputs."""
        return max(1024, self.budget // 16)

    def compute(
        self,
        sizes: Sequence[int],
        tokenize: Callable[[Rows], W],
        start: Callable[[W, Rows], Finish],
        out: Vectors,
        *,
        shown: tuple[str, str] | None = None,
        most: int | None = None,
    ) -> Vectors:
        """Fill the rows of ``out`` with the results of all inputs, the largest inputs first.

        ``tokenize`` gets the indices of some inputs. If there is more than one window of inputs, it
        runs in a thread, ahead of the batches. ``sizes`` are rough sizes of the inputs. ``shown``
        has the label and the unit of the progress on stderr; None: no progress. The other arguments
        are those of `collect`.
        """
        windows = self._windows(sizes, tokenize)
        if len(sizes) > self.window:
            windows = prefetch(windows)
        bar = progress(shown[0], len(sizes), shown[1]) if shown else nullcontext()
        with bar as advance, closing(windows):
            return self.collect(windows, start, out, advance=advance, most=most)

    def _windows(
        self, sizes: Sequence[int], tokenize: Callable[[Rows], W]
    ) -> Generator[tuple[Rows, W]]:
        """Yield the indices of some inputs and these inputs tokenised, the largest inputs first."""
        order, window = np.argsort(-np.array(sizes, np.int64), kind="stable"), self.window
        for start in range(0, len(sizes), window):
            rows = order[start : start + window]
            yield rows, tokenize(rows)

    def collect(
        self,
        windows: Iterable[tuple[Rows, W]],
        start: Callable[[W, Rows], Finish],
        out: Vectors,
        *,
        advance: Advance | None = None,
        most: int | None = None,
    ) -> Vectors:
        """Fill the rows of ``out`` with the results of tokenised inputs, all columns that it has.

        A window is a group of inputs: their indices among all inputs, and the tokenised inputs.
        Each batch is started before the previous one is waited for, so that the device computes one
        while the CPU prepares the next. A CPU computes a batch as it is started. Results are then
        copied at once, since one that outlived its batch would split memory that later batches use.
        ``start`` and ``most`` are those of `launch`, and ``start`` gets the window too. ``advance``
        is called with the number of inputs of a window after all its batches are started.
        """
        in_flight: deque[StartedBatch] = deque()
        most_in_flight = 0 if self.device == "cpu" else 1
        for rows, inputs in windows:
            for batch in self.launch(inputs.lengths, partial(start, inputs), most=most):
                in_flight.append(StartedBatch(rows[batch.rows], batch.finish))
                if len(in_flight) > most_in_flight:
                    done = in_flight.popleft()
                    out[done.rows] = done.finish()[:, : out.shape[1]]
            if advance is not None:
                advance(len(rows))
        for done in in_flight:
            out[done.rows] = done.finish()[:, : out.shape[1]]
        return out

    def launch(
        self,
        lengths: NDArray[np.int32],
        start: Callable[[Rows], Finish],
        *,
        most: int | None = None,
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
        if self._search is not None:
            self._search.see(lengths, lambda rows: start(rows)())
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
        self, rows: Rows, lengths: NDArray[np.int32], start: Callable[[Rows], Finish]
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
