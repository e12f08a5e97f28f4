"""Embed on several devices: each device has its own process and gets a share of each batch.

Threads of one process would take turns at launching kernels.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import Reporting, report_as, reporting
from sbert_search.embed.engines.protocol import Engine, OpenedModel
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.loading.folder import read_folder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.text.tokens.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from sbert_search.embed.embedder import Embedder

T = TypeVar("T")
# ``truncate_dim`` of the workers. It exceeds the dimensions of every model, so that workers return
# whole vectors; the parent process truncates them.
_ALL = 1 << 30


class ProcessEngine:
    """An engine that distributes texts to the embedders of several worker processes.

    ``embedder`` makes the embedder of a worker. It must be at the top level of a module, so that
    the worker process can import it. A device, one for each worker, may occur more than once.
    """

    def __init__(
        self, embedder: Callable[..., Embedder], devices: Sequence[str], **options: object
    ) -> None:
        self._workers = [_Worker(device) for device in devices]
        opened, *others = self._open_all(embedder, devices, options)
        # With the precision auto, each worker chooses a precision, and the choices may differ.
        if any(other.precision != opened.precision for other in others):
            agreed = {**options, "precision": opened.precision}
            if opened.precision != "int8":
                agreed["calibrate"] = None
            opened, *_ = self._open_all(embedder, devices, agreed)
        self.name, self.dim, self.tokenizer = opened.name, opened.dim, opened.tokenizer
        self.calibration = opened.calibration
        self.precision, self.batch_tokens = opened.precision, opened.batch_tokens * len(devices)

    def _open_all(
        self,
        embedder: Callable[..., Embedder],
        devices: Sequence[str],
        options: Mapping[str, object],
    ) -> list[_Opened]:
        opening = [
            worker.submit(_open, embedder, {**options, "device": device}, devices.count(device))
            for worker, device in zip(self._workers, devices, strict=True)
        ]
        return [wait() for wait in opening]

    @property
    def beyond_calibration(self) -> float:
        """Share of the inputs of int8 layers, in all workers, beyond the calibration."""
        waits = [worker.submit(_range_counts) for worker in self._workers]
        values, beyond = np.sum([wait() for wait in waits], axis=0)
        return float(beyond / max(values, 1))

    def start(self, tokens: TokenizedTexts) -> Callable[[], Vectors]:
        """Send each process its share of the texts; return a function that waits for vectors."""
        shares = [
            (rows, worker.submit(_encode, tokens.take(rows)))
            for worker, rows in zip(self._workers, self._shares(tokens.lengths), strict=True)
            if len(rows)
        ]

        def finish() -> Vectors:
            out = np.empty((len(tokens), self.dim), dtype=np.float32)
            for rows, wait in shares:
                out[rows] = wait()
            return out

        return finish

    def _shares(self, lengths: NDArray[np.int32]) -> list[NDArray[np.int64]]:
        """Split texts, by index: shares of about equal tokens, each of similar lengths."""
        order = np.argsort(-lengths, kind="stable")
        ends = np.cumsum(lengths[order])
        cuts = ends[-1] * np.arange(1, len(self._workers)) / len(self._workers)
        return np.split(order, np.searchsorted(ends, cuts) + 1)


class _Worker:
    """A child process that ends when this object is deleted or the parent process ends."""

    # The pool ends its process when it is deleted. A finalizer that called `shutdown` would wait
    # for a thread, maybe in a garbage collection inside a lock which that thread needs.

    def __init__(self, device: str) -> None:
        self._device = device
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), begin_child, (reporting(),))

    def submit(self, work: Callable[..., T], *arguments: object) -> Callable[[], T]:
        """Send a call to the process; return a function that waits for its result."""
        with self._errors_naming_device():
            future = self._pool.submit(work, *arguments)

        def wait() -> T:
            with self._errors_naming_device():
                return future.result()

        return wait

    @contextmanager
    def _errors_naming_device(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool as error:
            raise ModelError(
                f"The process that computes on {self._device} has ended: memory ran out, or it was "
                "killed. (A script that names several devices must do its work under "
                "if __name__ == '__main__'.)"
            ) from error


class _Opened(NamedTuple):
    name: str
    dim: int
    tokenizer: TextTokenizer
    precision: str
    batch_tokens: int
    calibration: str


_embedders: list[Embedder] = []  # in a worker process: its one embedder


def begin_child(parent: Reporting) -> None:
    """Ignore Ctrl-C, which the parent process handles, and get SIGTERM when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report_as(parent)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _open(make: Callable[..., Embedder], options: dict[str, object], sharers: int) -> _Opened:
    """Open the embedder of this worker process.

    torch's CPU threads are divided by ``sharers``, the number of workers on the same device.
    """
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // sharers))
    embedder = make(**options)
    _embedders[:] = [embedder]
    opened = embedder.opened
    return _Opened(
        opened.engine.name,
        opened.engine.dim,
        opened.engine.tokenizer,
        opened.precision,
        embedder.batch_tokens,
        opened.calibration,
    )


def _encode(tokens: TokenizedTexts) -> Vectors:
    (embedder,) = _embedders
    return embedder.encode_tokens(tokens)


def _range_counts() -> tuple[int, int]:
    """Count the input values of int8 layers so far: all, and those beyond the calibrated range."""
    (embedder,) = _embedders
    counter = getattr(embedder.opened.engine, "counter", None)
    return (0, 0) if counter is None else (counter.values, counter.beyond)


def open_processes(
    embedder: Callable[..., Embedder],
    model: object,
    devices: Sequence[str],
    **options: object,
) -> OpenedModel[Engine]:
    """Open a model, which must be a folder or a name, on several devices."""
    if model is not None and not isinstance(model, (str, Path)):
        raise ConfigError(
            f"A {type(model).__name__} in memory cannot be sent to several devices; save it and "
            "pass its folder."
        )
    resolved = resolve_model(model)
    folder = read_folder(resolved.path)
    engine = ProcessEngine(embedder, devices, model=resolved.path, truncate_dim=_ALL, **options)
    precision, calibration = engine.precision, engine.calibration
    return OpenedModel.from_folder(
        resolved, folder, engine, precision, ",".join(devices), calibration=calibration
    )
