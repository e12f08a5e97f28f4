"""The queue of a model: shared batches, fairness, cancelling, overload and failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.serve.access import ServerLimits
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.problems import Problem
from sbert_search.serve.queue import WorkQueue

Compute = Callable[[Sequence[int]], NDArray[np.float32]]


class Gate:
    """Computes squares; a batch begins only when the gate is opened for it."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun = threading.Semaphore(0)
        self._open = threading.Semaphore(0)

    def compute(self, items: Sequence[int]) -> NDArray[np.float32]:
        self.batches.append(list(items))
        self.begun.release()
        self._open.acquire()
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return np.array(items, np.float32)[:, None] ** 2

    def let(self, n: int = 1) -> None:
        self._open.release(n)

    def wait(self) -> None:
        assert self.begun.acquire(timeout=30)


@contextmanager
def queue_of(compute: Compute, budget: int = 10, limit: int = 1000) -> Iterator[WorkQueue[int]]:
    queue = WorkQueue(
        "test",
        compute,
        batch_tokens=lambda: budget,
        limits=ServerLimits(queue_tokens=limit, window_s=5.0),
        metrics=Metrics(),
    )
    yield queue
    queue.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.let(1000)


def test_requests_share_a_batch_and_get_their_own_rows(gate: Gate) -> None:
    with queue_of(gate.compute) as queue:
        first = queue.submit([1], [1])
        gate.wait()  # computes [1]; what comes now shares the next batch
        second, third = queue.submit([2, 3], [4, 2]), queue.submit([5], [3])
        gate.let(2)
        assert first.result(30).rows.tolist() == [[1]]
        assert second.result(30).rows.tolist() == [[4], [9]]
        assert third.result(30).rows.tolist() == [[25]]
        assert gate.batches == [[1], [2, 3, 5]]
        assert queue.waiting_tokens == 0


def test_a_large_request_delays_others_by_one_batch(gate: Gate) -> None:
    with queue_of(gate.compute) as queue:
        large = queue.submit(list(range(100)), [2] * 100)
        gate.wait()
        small = queue.submit([7], [2])
        gate.let(2)
        assert small.result(30).rows.tolist() == [[49]]
        assert 7 in gate.batches[1]
        assert not large.done()
        gate.let(100)
        assert large.result(30).rows[:, 0].tolist() == [n**2 for n in range(100)]
        assert all(len(batch) <= 5 for batch in gate.batches)


def test_a_text_above_the_budget_is_a_batch_of_its_own(gate: Gate) -> None:
    gate.let(10)
    with queue_of(gate.compute) as queue:
        assert queue.submit([1, 2, 3], [3, 50, 4]).result(30).rows.tolist() == [[1], [4], [9]]
        assert gate.batches == [[2], [3, 1]]


def test_a_batch_waits_for_announced_requests(gate: Gate) -> None:
    gate.let(10)
    with queue_of(gate.compute) as queue:
        with queue.arriving(3) as arrival:
            first = queue.submit([1], [1])
            assert queue.waiting_tokens == 4
            second = queue.submit([2], [1], arrival=arrival)
        first.result(30), second.result(30)
        assert gate.batches == [[1, 2]]
        assert queue.waiting_tokens == 0


def test_what_a_client_no_longer_wants_is_not_computed(gate: Gate) -> None:
    with queue_of(gate.compute) as queue:
        busy = queue.submit([1], [1])
        gate.wait()
        gone = queue.submit([2], [4])
        kept = queue.submit([3], [4])
        assert gone.cancel()
        assert queue.waiting_tokens == 4
        gate.let(10)
        assert kept.result(30).rows.tolist() == [[9]]
        assert busy.done()
        assert gate.batches == [[1], [3]]


def test_too_many_tokens_are_refused_with_a_time(gate: Gate) -> None:
    with queue_of(gate.compute, limit=20) as queue:
        queue.submit([1], [1])
        gate.wait()
        waiting = queue.submit([2, 3], [10, 8])
        with pytest.raises(Problem) as refused:
            queue.submit([4], [3])
        assert refused.value.status == 429
        assert int(refused.value.headers["retry-after"]) >= 1
        with pytest.raises(Problem), queue.arriving(3):
            pass
        urgent = queue.submit([5], [30], urgent=True)
        gate.let(10)
        assert waiting.result(30).rows.tolist() == [[4], [9]]
        assert urgent.result(30).rows.tolist() == [[25]]
        assert queue.submit([4], [3]).result(30).rows.tolist() == [[16]]


def test_one_request_alone_may_exceed_the_limit(gate: Gate) -> None:
    gate.let(10)
    with queue_of(gate.compute, limit=5) as queue:
        assert queue.submit([2], [50]).result(30).rows.tolist() == [[4]]


def test_a_failing_request_fails_alone(gate: Gate) -> None:
    with queue_of(gate.compute) as queue:
        queue.submit([1], [1])
        gate.wait()
        bad, good = queue.submit([-1], [1]), queue.submit([3], [1])
        gate.let(10)
        assert good.result(30).rows.tolist() == [[9]]
        with pytest.raises(ValueError, match="negative"):
            bad.result(30)
        assert queue.is_alive
        assert queue.submit([4], [1]).result(30).rows.tolist() == [[16]]


def test_the_end_cancels_what_waits(gate: Gate) -> None:
    with queue_of(gate.compute) as queue:
        computed = queue.submit([1], [1])
        gate.wait()
        waiting = queue.submit([2], [1])
        gate.let(1)
    assert computed.result(30).rows.tolist() == [[1]]
    assert waiting.cancelled()
    assert not queue.is_alive
    with pytest.raises(Problem, match="shutting down") as refused:
        queue.submit([3], [1])
    assert refused.value.status == 503


def test_seconds_and_batches_are_counted() -> None:
    metrics = Metrics()
    queue: WorkQueue[int] = WorkQueue(
        "test",
        lambda items: np.zeros((len(items), 1), np.float32),
        batch_tokens=lambda: 10,
        limits=ServerLimits(queue_tokens=100, window_s=0.1),
        metrics=metrics,
    )
    done = queue.submit([1, 2], [3, 4]).result(30)
    assert done.queue_s >= 0
    assert done.inference_s >= 0
    queue.close()
    assert "te_batch_next_size_sum 2" in metrics.text()
    assert "te_batch_next_tokens_sum 7" in metrics.text()
