"""Small steps on a CUDA device, each replayed as one graph.

A step of a few texts keeps the device busy for less time than it takes to launch its hundred
kernels or so. Such a step is padded to one of few shapes, its bucket; the work of a bucket is
recorded once, over tensors that stay where they are, and replayed by one launch from then on.

Source: torch.cuda.CUDAGraph; "CUDA semantics", section CUDA Graphs, of torch's documentation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from sbert_search.encoder.packed import PackedTokens
from sbert_search.runtime.device import send
from sbert_search.runtime.progress import note

MOST_TOKENS = 1024  # of a bucket; from a few thousand, arithmetic takes longer than launches
_LEAST_LENGTH = 16  # tokens of a text

Ids = Sequence[Sequence[int]]
Compute = Callable[[PackedTokens], Tensor]
Work = Callable[[], Tensor]
Record = Callable[[Work], Work]


class Replayed:
    """Computes packed batches, the small ones by replay; safe to share between threads.

    Args:
        compute: From a batch to float (batch, width), of a model that `reads_starts`; its weights
            must stay where they are.
        device: Where.
        longest: Tokens of a text that the model reads.
        record: Turns work into what does it again, into the same tensor; None: a CUDA graph.
    """

    def __init__(
        self, compute: Compute, device: torch.device, longest: int, record: Record | None = None
    ) -> None:
        self._compute, self._device, self._longest = compute, device, longest
        self._record = record or on_cuda(device)
        self._buckets: dict[tuple[int, int, bool], _Bucket] = {}
        self._lock = threading.Lock()  # between filling a bucket and copying what came out
        self._records = True

    def __call__(self, ids: Ids, types: Ids | None = None) -> Tensor:
        """Compute texts of these ids and segments, float (batch, width)."""
        texts = _power(len(ids))
        length = min(_power(max(map(len, ids)), _LEAST_LENGTH), self._longest)
        if self._records and texts * length <= MOST_TOKENS:
            with self._lock:
                bucket = self._bucket(texts, length, types is not None)
                bucket.fill(ids, types)
                try:
                    return bucket.work()[: len(ids)].clone()
                except RuntimeError as error:  # out of memory is one, too
                    self._records = False
                    self._buckets.clear()
                    note(f"CUDA graphs are left out on {self._device}: {error}")
        return self._compute(PackedTokens.from_lists(ids, types, device=self._device))

    def _bucket(self, texts: int, length: int, has_types: bool) -> _Bucket:
        key = (texts, length, has_types)
        if key not in self._buckets:
            self._buckets[key] = _Bucket(*key, self._compute, self._record, self._device)
        return self._buckets[key]


class _Bucket:
    """Up to so many texts, each up to so long, in tensors that stay where they are.

    Rows after the last text belong to none. Texts that are left over are empty and lie there.
    """

    def __init__(
        self,
        texts: int,
        length: int,
        has_types: bool,
        compute: Compute,
        record: Record,
        device: torch.device,
    ) -> None:
        self._compute, self._record, self._device = compute, record, device
        shape = 2 + has_types, texts * length
        self._rows = torch.zeros(shape, dtype=torch.int64, device=device)
        self._starts = torch.zeros(texts + 1, dtype=torch.int32, device=device)
        segments = self._rows[2] if has_types else None
        batch = PackedTokens(self._rows[0], (length,) * texts, segments)
        self._batch = batch.with_places(self._starts, self._rows[1])

    def fill(self, ids: Ids, types: Ids | None) -> None:
        """Put texts into the first rows: ids, positions, segments."""
        starts = np.zeros(len(self._starts), dtype=np.int32)
        starts[1 : len(ids) + 1] = list(map(len, ids))
        starts = starts.cumsum(dtype=np.int32)
        rows = np.zeros(self._rows.shape, dtype=np.int64)
        total = int(starts[-1])
        rows[0, :total] = list(chain.from_iterable(ids))
        rows[1, :total] = np.arange(total) - np.repeat(starts[:-1], np.diff(starts))
        if types is not None:
            rows[2, :total] = list(chain.from_iterable(types))
        self._rows.copy_(send(rows, self._device))
        self._starts.copy_(send(starts, self._device))

    @cached_property
    def work(self) -> Work:
        """Computes what was filled in, float (texts, width); recorded on first use."""
        return self._record(lambda: self._compute(self._batch))


def on_cuda(device: torch.device) -> Record:
    """Record work as CUDA graphs, which share the memory between their first and last tensor."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(work: Work) -> Work:
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            work()  # loads kernels and makes workspaces, which is forbidden while recording
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on copying and launching meanwhile.
            with torch.cuda.graph(
                graph, pool=pool, stream=stream, capture_error_mode="thread_local"
            ):
                out = work()
        current.wait_stream(stream)

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    return record


def _power(number: int, least: int = 1) -> int:
    """The smallest power of two that is neither below the number nor below the least."""
    return max(least, 1 << (number - 1).bit_length())
