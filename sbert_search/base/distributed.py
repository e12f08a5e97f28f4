"""Communication between the ranks (processes) that torchrun started; without it there is one.

Gradients are summed over the ranks, not averaged: each rank divides its loss by the number of
examples or tokens of the whole batch. See "Gradients are summed after the backward pass" in
docs/decisions.md. If another rank ends or stops answering, every exchange raises a `TrainingError`.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sbert_search.base.progress import SILENT, report_as, reporting
from sbert_search.errors import ConfigError, TrainingError

T = TypeVar("T")

BUCKET_ELEMENTS = 1 << 25  # gradient elements in one all-reduce: 128 MiB in fp32
TIMEOUT = "SBERT_SEARCH_RANK_TIMEOUT"  # environment variable: seconds that a rank waits
_TIMEOUT_S = 4 * 3600  # default: the other ranks wait while rank 0 tokenises, evaluates or saves


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process, and its communication with the other ranks."""

    rank: int = 0
    world: int = 1  # number of ranks
    local_rank: int = 0  # among the ranks of this machine; also the number of its CUDA device

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes the log and the checkpoints."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum values over the ranks, in float64 on the CPU."""
        if self.world == 1 or not values:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        with self._exchange():
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
        """Concatenate the rows (n, ...) of all ranks, in order; the slice is of this rank's rows.

        The number of rows may differ. The result has no gradient: every rank computes the loss of
        the whole batch and backpropagates only the gradient of its own rows.
        """
        if self.world == 1:
            return rows, slice(0, len(rows))
        counts = self.sum([len(rows) if r == self.rank else 0 for r in range(self.world)])
        sizes = [int(n) for n in counts]
        padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        with self._exchange():
            dist.all_gather(parts, padded)
        start = sum(sizes[: self.rank])
        whole = torch.cat([part[:n] for part, n in zip(parts, sizes, strict=True)])
        return whole, slice(start, start + len(rows))

    def gather_values(self, value: object) -> list[object]:
        """Return the JSON values that the ranks give, in the order of the ranks."""
        line = bytearray(json.dumps(value).encode() + b"\n")  # JSON text has no line end
        lines, _ = self.gather(torch.frombuffer(line, dtype=torch.uint8))
        return [json.loads(each) for each in lines.numpy().tobytes().splitlines()]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients over the ranks; a missing gradient counts as zero."""
        if self.world == 1:
            return
        every = list(parameters)
        used = self.sum([float(p.grad is not None) for p in every])
        for bucket in _buckets([p for p, n in zip(every, used, strict=True) if n]):
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            with self._exchange():
                dist.all_reduce(flat)
            parts = torch.split(flat, [grad.numel() for grad in grads])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view_as(parameter)

    def start_equal(self, module: nn.Module) -> None:
        """Copy rank 0's parameters and buffers to every rank."""
        if self.world > 1:
            for tensor in [*module.parameters(), *module.buffers()]:
                with self._exchange():
                    dist.broadcast(tensor.data, src=0)

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Turn the error of a failed exchange into a `TrainingError` that names this rank."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # Gloo and NCCL raise this type and its subclasses
            reason = str(error).strip().partition("\n")[0]
            raise TrainingError(
                f"Rank {self.rank} of {self.world}, on {socket.gethostname()}, lost another rank, "
                f"which ended, was stopped or cannot be reached: {reason}. The output of the rank "
                "that ended first says why. Resume the run with --resume, or let torchrun do so "
                f"with `--max-restarts`. A rank waits {timeout():g} s for the others ({TIMEOUT})."
            ) from error


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the ranks that torchrun started, for the duration of the context.

    CPU tensors are exchanged by Gloo, CUDA tensors by NCCL. An existing process group is used and
    stays open. Only rank 0 shows progress, notes and warnings.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not dist.is_initialized():
        yield Ranks()
        return
    opened, before = not dist.is_initialized(), reporting()
    if opened:
        _open_group()
    try:
        if dist.get_rank() > 0:
            report_as(SILENT)
        local = int(os.environ.get("LOCAL_RANK", "0"))
        yield Ranks(dist.get_rank(), dist.get_world_size(), local)
    finally:
        report_as(before)
        if opened:
            dist.destroy_process_group()


def timeout() -> float:
    """Return the seconds that a rank waits for the others."""
    given = os.environ.get(TIMEOUT, str(_TIMEOUT_S))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ConfigError(f"{TIMEOUT} is {given!r}; give a number of seconds above 0.")
    return seconds


def _open_group() -> None:
    _require_fresh_addresses()
    # Functions of torch.distributed.nn.functional have a default argument: the process group that
    # exists when the module is imported. torch.optim imports the module. If this happened after
    # `init_process_group`, the default argument would keep the group and its threads alive after
    # `destroy_process_group`, and such a thread may abort the process when the process ends. So the
    # module is imported now, while there is no group.
    importlib.import_module("torch.distributed.nn.functional")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout()))
    except RuntimeError as error:
        address = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = str(error).strip().partition("\n")[0]
        raise TrainingError(
            f"Rank {os.environ.get('RANK', '0')}, on {socket.gethostname()}, could not join the "
            f"other ranks at {address}: {reason}. Start all ranks, and open this port between the "
            "machines; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the network interface."
        ) from error


def _require_fresh_addresses() -> None:
    """Refuse restarts by torchrun that would fail (pytorch issue 135712).

    torchrun keeps one store of addresses for all restarts, so a restarted rank would read the
    addresses of the ranks before.
    """
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ConfigError(
            f"`torchrun --max-restarts={restarts}` needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in "
            "the environment of torchrun on every machine; without it, restarted ranks do not find "
            "each other."
        )


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in bucket) + parameter.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
