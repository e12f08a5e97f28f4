"""The queue of a model, in which the texts of all requests share batches; the cost of a request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import TokenizedTexts
from sbert_search.serve.access import ServerLimits
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.problems import Problem, closing_problem, overloaded_problem
from sbert_search.text.tokens.tokenizer import EncodedPairs

T = TypeVar("T")
E = TypeVar("E", TokenizedTexts, EncodedPairs)
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Computed:
    """The result of a job."""

    rows: Rows  # a vector or a score for each item, (n, dim) or (n,)
    queue_s: float  # from the job's submission until its first batch began
    inference_s: float  # of the batches with its items


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    items: Sequence[T]
    lengths: Sequence[int]
    order: list[int]  # indices of the items that wait; the next one is at the end
    future: Future[Computed]
    submitted_s: float
    left: int  # number of items that are not computed yet
    waiting_tokens: int  # of the items that wait
    rows: Rows | None = None
    started_s: float | None = None
    inference_s: float = 0.0


@dataclass(slots=True)
class Arrival:
    """An announcement of a job: its estimated tokens, and whether the announcement has ended."""

    estimate: int
    ended: bool = False


class WorkQueue(Generic[T]):
    """Computes the items of many requests in shared batches, in one thread.

    A batch takes items of each waiting job in turn until it is full, so that a large request delays
    others by one batch at most. Each job is sorted by length, so that texts of similar length share
    a batch. A job whose future is cancelled leaves the queue at once.

    ``compute`` returns float32 (n, dim) or (n,). A batch has at most ``batch_tokens``, or one item.
    At most ``limits.queue_tokens`` may wait; a job with more is accepted if no other one waits. A
    batch waits up to ``limits.window_s`` for jobs that `arriving` announced.
    """

    def __init__(
        self,
        name: str,
        compute: Callable[[Sequence[T]], Rows],
        *,
        batch_tokens: Callable[[], int],
        limits: ServerLimits,
        metrics: Metrics,
    ) -> None:
        self._compute, self._batch_tokens = compute, batch_tokens
        self._limits, self._metrics = limits, metrics
        self._wake = threading.Condition()
        self._jobs: deque[_Job[T]] = deque()
        self._waiting_tokens = 0
        self._reserved_tokens = 0
        self._arriving = 0
        self._tokens_per_s = 0.0
        self._batch_started_s: float | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting_tokens(self) -> int:
        """Tokens of jobs that wait, and estimated tokens of jobs that are announced."""
        return self._waiting_tokens + self._reserved_tokens

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def busy_s(self) -> float:
        """Seconds since the batch that is being computed began; 0: there is none."""
        started_s = self._batch_started_s
        return 0.0 if started_s is None else time.monotonic() - started_s

    @property
    def retry_s(self) -> float:
        """Estimated seconds until all tokens that wait now are computed."""
        return self.waiting_tokens / self._tokens_per_s if self._tokens_per_s else 1.0

    @contextmanager
    def arriving(self, estimate: int) -> Iterator[Arrival]:
        """Announce a job whose texts are not tokenised yet, and reserve room for its tokens.

        The announcement ends with `submit`, or with the context. It is refused if too many tokens
        wait.
        """
        arrival = Arrival(estimate)
        with self._wake:
            if self.waiting_tokens + estimate > self._limits.queue_tokens and self.waiting_tokens:
                raise overloaded_problem(self.retry_s)
            self._arriving += 1
            self._reserved_tokens += estimate
        try:
            yield arrival
        finally:
            with self._wake:
                self._end(arrival)
                self._wake.notify()

    def submit(
        self,
        items: Sequence[T],
        lengths: Sequence[int],
        *,
        arrival: Arrival | None = None,
        urgent: bool = False,
    ) -> Future[Computed]:
        """Add a job of at least one item, whose announcement ends here.

        It is refused if too many tokens wait, unless it is urgent, as in searches and updates.
        """
        tokens = sum(lengths)
        order = sorted(range(len(items)), key=lengths.__getitem__)
        job = _Job(items, lengths, order, Future(), time.monotonic(), len(items), tokens)
        with self._wake:
            if arrival is not None:
                self._end(arrival)
            if self._closed:  # no thread would compute the job, and its client would wait forever
                raise closing_problem()
            all_tokens = self._waiting_tokens + tokens
            if all_tokens > self._limits.queue_tokens and self._waiting_tokens and not urgent:
                raise overloaded_problem(self.retry_s)
            self._waiting_tokens = all_tokens
            self._jobs.append(job)
            self._wake.notify()
        job.future.add_done_callback(lambda _: self._forget(job))
        return job.future

    async def encode(
        self,
        encode: Callable[[], E],
        items_of: Callable[[E], Sequence[T]],
        work: Work,
        *,
        n_chars: int,
        n_special: int,
        max_len: int | None,
        param: str,
    ) -> tuple[E, Computed]:
        """Tokenise the texts of a request and compute them in a job; add the cost to ``work``.

        A text that was truncated to ``max_len`` tokens is refused; None: it is accepted. ``param``
        is the field of the request that holds the texts; ``n_special`` are their special tokens.
        """
        with self.arriving(n_chars // _CHARS_A_TOKEN + n_special) as arrival:
            started_s = time.perf_counter()
            encoded = await in_thread(n_chars, encode)
            work.tokenization_s += time.perf_counter() - started_s
            lengths = encoded.lengths.tolist()
            if max_len is not None and encoded.lost.any():
                at = int(np.argmax(encoded.lost > 0))
                raise Problem(
                    413,
                    f"{lengths[at] + encoded.lost[at]:,} tokens; the model reads {max_len:,}. "
                    "Shorten the text, or let it be truncated.",
                    f"{param}[{at}]",
                )
            self._limits.require_tokens(sum(lengths), param)
            future = self.submit(items_of(encoded), lengths, arrival=arrival)
        return encoded, await asyncio.wrap_future(future)

    def close(self) -> None:
        """Cancel the jobs that wait, and stop the thread after its current batch."""
        with self._wake:
            self._closed = True
            jobs = list(self._jobs)
            self._wake.notify()
        for job in jobs:
            job.future.cancel()
        self._thread.join()

    def _end(self, arrival: Arrival) -> None:
        if not arrival.ended:
            arrival.ended = True
            self._arriving -= 1
            self._reserved_tokens -= arrival.estimate

    def _forget(self, job: _Job[T]) -> None:
        """Remove the waiting items of a job that has ended, was cancelled or failed."""
        with self._wake:
            self._waiting_tokens -= job.waiting_tokens
            job.waiting_tokens = 0
            if job.order:
                with suppress(ValueError):
                    self._jobs.remove(job)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                self._await_arriving()
                batch = self._next_batch()
            if batch:
                self._batch_started_s = time.monotonic()
                self._compute_batch(batch)
                self._batch_started_s = None

    def _await_arriving(self) -> None:
        """Wait until all announced jobs are there, the window ends, or a batch is full."""
        until = time.monotonic() + self._limits.window_s
        while self._arriving and self._waiting_tokens < self._batch_tokens():
            left_s = until - time.monotonic()
            if left_s <= 0 or self._closed:
                return
            self._wake.wait(left_s)

    def _next_batch(self) -> list[tuple[_Job[T], list[int]]]:
        """Take items of each job in turn until the batch is full; unfinished jobs go to the end."""
        budget, taken = self._batch_tokens(), 0
        batch: dict[_Job[T], list[int]] = {}
        while self._jobs and (taken < budget or not batch):
            share = max(1, (budget - taken) // len(self._jobs))
            before = taken
            for _ in range(len(self._jobs)):
                job = self._jobs.popleft()
                mine = 0
                while job.order and mine < share:
                    length = job.lengths[job.order[-1]]
                    if batch and taken + length > budget:
                        break
                    batch.setdefault(job, []).append(job.order.pop())
                    mine += length
                    taken += length
                job.waiting_tokens -= mine
                self._waiting_tokens -= mine
                if job.order:
                    self._jobs.append(job)
            if taken == before:
                break
        return list(batch.items())

    def _compute_batch(self, batch: list[tuple[_Job[T], list[int]]]) -> None:
        """Compute a batch; if it fails, compute each job alone, so that only a faulty one fails."""
        try:
            self._finish(batch, *self._timed(batch))
        except Exception as error:
            if len(batch) > 1:
                for part in batch:
                    self._compute_batch([part])
                return
            with suppress(InvalidStateError):  # the client has hung up
                batch[0][0].future.set_exception(error)

    def _timed(self, batch: list[tuple[_Job[T], list[int]]]) -> tuple[Rows, float]:
        items = [job.items[i] for job, taken in batch for i in taken]
        tokens = sum(job.lengths[i] for job, taken in batch for i in taken)
        started_s = time.monotonic()
        for job, _ in batch:
            if job.started_s is None:
                job.started_s = started_s
        rows = self._compute(items)
        seconds = time.monotonic() - started_s
        self._metrics.batch_texts.observe(len(items))
        self._metrics.batch_tokens.observe(tokens)
        rate = tokens / max(seconds, 1e-6)
        # an exponential moving average
        self._tokens_per_s += 0.2 * (rate - self._tokens_per_s) if self._tokens_per_s else rate
        return rows, seconds

    def _finish(self, batch: list[tuple[_Job[T], list[int]]], rows: Rows, seconds: float) -> None:
        start = 0
        for job, taken in batch:
            if job.rows is None:
                job.rows = np.empty((len(job.items), *rows.shape[1:]), np.float32)
            job.rows[taken] = rows[start : start + len(taken)]
            start += len(taken)
            job.left -= len(taken)
            job.inference_s += seconds
            if not job.left:
                queue_s = (job.started_s or job.submitted_s) - job.submitted_s
                with suppress(InvalidStateError):  # the client has hung up
                    job.future.set_result(Computed(job.rows, queue_s, job.inference_s))


_INLINE_CHARS = 1024  # texts of up to this many characters are tokenised without another thread
_CHARS_A_TOKEN = 3  # to estimate the tokens of texts before they are tokenised

_tokenizers = ThreadPoolExecutor(2, thread_name_prefix="sbert-search-tokenize")


@dataclass(slots=True)
class Work:
    """The cost of a request so far, for headers, the log and metrics."""

    texts: int = 0  # or pairs
    tokens: int = 0  # that the model read
    truncated: int = 0  # number of texts
    tokenization_s: float = 0.0
    queue_s: float = 0.0  # from each submission until its first batch began, summed
    inference_s: float = 0.0  # of the batches with its texts
    search_s: float = 0.0
    found: list[dict[str, object]] = field(
        default_factory=list
    )  # for each query, in a log of texts

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Add the time of a search, of facets or of a count."""
        started_s = time.perf_counter()
        try:
            yield
        finally:
            self.search_s += time.perf_counter() - started_s

    def add(
        self, done: Computed, lengths: NDArray[np.int32], lost: NDArray[np.int32], metrics: Metrics
    ) -> None:
        """Add computed texts, here and to the metrics: tokens (n,) that were read, and cut off."""
        truncated = int(np.count_nonzero(lost))
        self.texts += len(lengths)
        self.tokens += int(lengths.sum())
        self.truncated += truncated
        self.queue_s += done.queue_s
        self.inference_s += done.inference_s
        for length in lengths.tolist():
            metrics.input_lengths.observe(length)
        if truncated:
            metrics.truncated.add(truncated)


async def in_thread(chars: int, tokenize: Callable[[], T]) -> T:
    """Tokenise texts, of so many characters, without blocking the event loop for long."""
    if chars <= _INLINE_CHARS:  # a switch to another thread would take longer
        return tokenize()
    return await asyncio.get_running_loop().run_in_executor(_tokenizers, tokenize)
