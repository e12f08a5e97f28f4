"""Communication between the ranks (processes) that torchrun started.

Without torchrun there is one rank. Gradients are summed over the ranks after the backward pass, not
averaged. Each rank divides its loss by the number of examples or tokens of the whole batch, so the
sum is the gradient of the whole batch. See "Gradients are summed after the backward pass" in
docs/decisions.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sbert_search.runtime.progress import set_quiet

T = TypeVar("T")

BUCKET_ELEMENTS = 1 << 25  # gradient elements in one all-reduce: 128 MiB in fp32
TIMEOUT = timedelta(hours=4)  # the other ranks wait while rank 0 evaluates or saves


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process, and its communication with the other ranks.

    Attributes:
        rank: Number of this process, from 0; rank 0 writes the log and the checkpoints.
        world: Number of ranks.
        local_rank: Number of this process among those of this machine, from 0; also the number of
            its CUDA device.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum values over the ranks, in float64 on the CPU."""
        if self.world == 1 or not values:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def from_first(self, values: Sequence[float]) -> list[float]:
        """Return the values of rank 0 on every rank."""
        return self.sum(values if self.first else [0.0] * len(values))

    def wait(self) -> None:
        """Wait until every rank has called this."""
        self.sum([0.0])

    def first_then_others(self, work: Callable[[], T]) -> T:
        """Call ``work`` on rank 0, then on the other ranks, which find the results on disk."""
        if self.first:
            done = work()
        self.wait()
        if not self.first:
            done = work()
        return done

    def gather(self, rows: Tensor) -> tuple[Tensor, slice]:
        """Concatenate the rows of all ranks; the number of rows may differ.

        The result has no gradient. The caller computes the loss of the whole batch on every rank,
        and backpropagates only the gradient of the rank's own rows. `sum_gradients` then gives the
        gradient of the whole batch.

        Args:
            rows: This rank's rows, (n, ...).

        Returns:
            The rows of rank 0, 1, ..., and the slice of this rank's rows.
        """
        if self.world == 1:
            return rows, slice(0, len(rows))
        counts = self.sum([len(rows) if r == self.rank else 0 for r in range(self.world)])
        sizes = [int(n) for n in counts]
        padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        start = sum(sizes[: self.rank])
        whole = torch.cat([part[:n] for part, n in zip(parts, sizes, strict=True)])
        return whole, slice(start, start + len(rows))

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients over the ranks; a missing gradient counts as zero."""
        if self.world == 1:
            return
        every = list(parameters)
        used = self.sum([float(p.grad is not None) for p in every])
        for bucket in _buckets([p for p, n in zip(every, used, strict=True) if n]):
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            dist.all_reduce(flat)
            parts = torch.split(flat, [grad.numel() for grad in grads])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view_as(parameter)

    def start_equal(self, module: nn.Module) -> None:
        """Copy rank 0's parameters and buffers to every rank."""
        if self.world > 1:
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor.data, src=0)


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the ranks that torchrun started, for the duration of the context.

    CPU tensors are exchanged by Gloo, CUDA tensors by NCCL. An existing process group is used and
    stays open. Only rank 0 shows progress and notes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not dist.is_initialized():
        yield Ranks()
        return
    opened = not dist.is_initialized()
    if opened:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        if dist.get_rank() > 0:
            set_quiet(True)
        local = int(os.environ.get("LOCAL_RANK", "0"))
        yield Ranks(dist.get_rank(), dist.get_world_size(), local)
    finally:
        if opened:
            dist.destroy_process_group()


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in bucket) + parameter.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
