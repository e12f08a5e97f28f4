"""Worker processes on a cluster embed batches: each gives one result, even if processes end."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar, cast

from sbert_search.base.processor import requested_threads
from sbert_search.base.progress import note, warn
from sbert_search.cluster.connection import (
    Call,
    Cluster,
    Hung,
    Lost,
    Process,
    Share,
    host_and_python,
    wait_for_any,
)
from sbert_search.embed.pipeline import EmbeddedBatch, OnTruncate, encode_batch, tokenize_batch
from sbert_search.embed.protocol import TextEmbedder, TokenizedTexts
from sbert_search.errors import ClusterError, ModelError, SbertSearchError
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Document
from sbert_search.text.tokens.chunking import Chunking


class OpenModel(NamedTuple):
    """How a worker opens the model."""

    make: Callable[[], TextEmbedder]
    identity: ModelIdentity  # of the main process; a worker must match it, see `_require_equal`
    versions: str  # that the worker must have, see `host_and_python`
    threads: int  # CPU threads of the model, unless OMP_NUM_THREADS is set for the worker


class Opened(NamedTuple):
    """The machine and the device of a worker, and the number of its CPU threads."""

    host: str
    device: str
    threads: int


class Texts(NamedTuple):
    """The texts of a batch, and how they are split into passages."""

    ids: list[str]  # of the documents, for messages
    sources: list[str]  # where the documents were read, for messages
    texts: list[str]  # titles and texts
    on_truncate: OnTruncate
    chunking: Chunking


class EmbeddingWorker:
    """Embeds batches; several threads may call `embed`, and another one `n_calls`.

    While one batch is encoded, the threads of other calls tokenise theirs. Only one thread encodes,
    since each thread that runs the model would have its own pool of CPU threads.
    """

    def __init__(self) -> None:
        self._encoder = ThreadPoolExecutor(1)
        self._n_calls = 0

    def open(self, model: OpenModel) -> Opened:
        """Open the model; refuse a machine with other versions or another model."""
        host, versions = host_and_python()
        if versions != model.versions:
            raise ClusterError(
                f"{host} has {versions}, and the machine of the command has {model.versions}. "
                "Install the same versions on all machines."
            )
        try:
            self._embedder = model.make()
            identity = self._embedder.identity
        except (SbertSearchError, OSError, RuntimeError, ImportError) as error:
            raise ClusterError(f"{host}: {error}") from error
        _require_equal(model.identity, identity, host)
        threads = requested_threads() or model.threads
        self._encoder.submit(_use_threads, threads).result()
        return Opened(host, str(getattr(self._embedder, "device", "cpu")), threads)

    def embed(self, texts: Texts) -> EmbeddedBatch[None]:
        """Embed a batch as `embed_batches` does, and return it without its documents."""
        parts = zip(texts.ids, texts.texts, texts.sources, strict=True)
        documents = [Document(doc_id, text, source=source) for doc_id, text, source in parts]
        batch, tokens = tokenize_batch(
            documents,
            None,
            0,
            self._embedder,
            on_truncate=texts.on_truncate,
            chunking=texts.chunking,
        )
        try:
            self._encoder.submit(self._encode, batch, tokens).result()
        except (ModelError, OSError, RuntimeError) as error:
            raise ClusterError(f"{host_and_python()[0]}: {error}") from error
        return replace(batch, documents=())

    def n_calls(self) -> int:
        """Return how many calls of the model have ended, so that a worker that hangs is noticed."""
        return self._n_calls

    def _encode(self, batch: EmbeddedBatch[None], tokens: TokenizedTexts) -> None:
        for _ in encode_batch(batch, tokens, self._embedder):
            self._n_calls += 1


def _use_threads(threads: int) -> None:
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


def _require_equal(wanted: ModelIdentity, found: ModelIdentity, host: str) -> None:
    if differing := found.differences(wanted, computed=True):
        raise ClusterError(
            f"{host} opens {found.name} with other settings than the machine of the command "
            f"({'; '.join(differing)}). Copy the same model folder to all machines, under the same "
            "path."
        )


T = TypeVar("T")

CALLS_A_WORKER = 3  # batches at a worker: one is encoded, one is tokenised, one waits
ATTEMPTS = 5  # the build fails if this many processes have ended while they had the same batch
LOSSES = 4  # processes per worker that may end one after another without a result between them
SILENT_S = 120.0  # time in which a worker must say how many calls of the model have ended
STUCK_S = 1_800.0  # time in which a call of the model must end
_ASK_S = 10.0  # time between two questions to a worker about its number of ended calls
_POLL_S = 1.0
_PAUSE_S = 10.0  # if the calls were not checked for this time, the time limits start again
_NOTE_S, WAIT_S = 20.0, 600.0  # time without any open worker until a note, and until an error


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """A batch that is sent to workers until it has a result."""

    texts: Texts
    payload: T  # the caller gets it back with the result
    held_bytes: int  # approximate memory of the batch
    attempts: int = 0  # number of processes that have ended while they had it
    result: EmbeddedBatch[None] | None = None
    error: Exception | None = None  # raised by the worker for the batch

    @property
    def is_done(self) -> bool:
        """Whether there is a result or an exception."""
        return self.result is not None or self.error is not None


@dataclass(slots=True, eq=False)
class _Worker(Generic[T]):
    number: int
    process: Process
    opening: Call | None  # the call that opens the model; None: it is open
    jobs: dict[Call, Job[T]] = field(default_factory=dict)
    asked: Call | None = None  # asks for the number of ended calls of the model
    asked_s: float = 0.0  # when it was last asked
    n_calls: int = 0  # ended calls of the model, by its last answer
    moved_s: float = 0.0  # last progress: a batch after none, a result, or a new n_calls


class Pool(Generic[T]):
    """Sends batches to workers and returns the results in the order of the batches.

    A process that ends is replaced, and its batches are sent again. If no machine has room, the
    other workers continue, and the new process starts as soon as there is room. A process is also
    ended and replaced if it has not answered for `SILENT_S`, or if no call of its model has ended
    for `STUCK_S`.
    """

    def __init__(self, cluster: Cluster, model: OpenModel, share: Share) -> None:
        self._cluster, self._share = cluster, share
        self._model = cluster.put(model)
        self._workers: list[_Worker[T]] = []
        self._unsent: deque[Job[T]] = deque()
        self._losses = 0  # since the last result
        self._last_worker_s = time.monotonic()  # when a worker last had the model open
        self._looked_s = time.monotonic()  # when the calls were last checked
        self._has_noted = False

    def end(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.process.end()
        self._workers.clear()
        self._unsent.clear()

    def results(self, jobs: Iterable[Job[T]], waiting_bytes: int) -> Iterator[Job[T] | None]:
        """Yield each job with its result; afterwards the workers stay for the next call.

        None is yielded at least about once a second while the next job has no result, so that the
        thread that runs this can stop. Workers end if this is closed before the last result. No
        further batch is read while the batches that are read and not yet yielded hold
        ``waiting_bytes``, or are ``CALLS_A_WORKER + 1`` for each worker. The exception of a batch
        is raised after the results of all batches before it.
        """
        unread, in_order, is_read = iter(jobs), deque[Job[T]](), False
        self._last_worker_s = time.monotonic()
        if not self._workers:
            self._workers = [self._start(number) for number in range(self._share.processes)]
        is_complete = False
        try:
            while True:
                while not is_read and self._has_room(in_order, waiting_bytes):
                    is_read = not self._take_next(unread, in_order)
                if not in_order:
                    is_complete = True
                    return
                if not in_order[0].is_done:
                    self._send()
                    self._collect()
                    yield None
                while in_order and in_order[0].is_done:
                    job = in_order.popleft()
                    if job.error is not None:
                        raise job.error
                    yield job
        finally:
            if not is_complete:
                self.end()

    def _take_next(self, unread: Iterator[Job[T]], in_order: deque[Job[T]]) -> bool:
        """Take the next job; return whether there was one."""
        if (job := next(unread, None)) is None:
            return False
        in_order.append(job)
        if not job.is_done:
            self._unsent.append(job)
        return True

    def _has_room(self, in_order: deque[Job[T]], waiting_bytes: int) -> bool:
        if not in_order:
            return True
        held = sum(job.held_bytes for job in in_order)
        most = (CALLS_A_WORKER + 1) * self._share.processes
        return len(in_order) < most and held < waiting_bytes

    def _start(self, number: int) -> _Worker[T]:
        process = self._cluster.start(
            EmbeddingWorker, self._share, calls=CALLS_A_WORKER, own_thread="n_calls"
        )
        return _Worker(number, process, process.call("open", self._model))

    def _send(self) -> None:
        """Send batches to workers that have opened the model, first to those with the fewest."""
        while self._unsent:
            ready = [worker for worker in self._workers if worker.opening is None]
            worker = min(ready, key=lambda worker: len(worker.jobs), default=None)
            if worker is None or len(worker.jobs) >= CALLS_A_WORKER:
                return
            job = self._unsent.popleft()
            if not worker.jobs:
                worker.asked_s = worker.moved_s = time.monotonic()
            worker.jobs[worker.process.call("embed", job.texts)] = job

    def _collect(self) -> None:
        """Wait until a call has finished, at most `_POLL_S`, and take all results."""
        calls: dict[Call, _Worker[T]] = {}
        for worker in self._workers:
            of_worker = worker.jobs if worker.opening is None else [worker.opening]
            calls.update(dict.fromkeys(of_worker, worker))
            if worker.asked is not None:
                calls[worker.asked] = worker
        for call in wait_for_any(list(calls), _POLL_S):
            worker = calls[call]
            if worker not in self._workers:
                continue  # another of its calls has shown that its process has ended
            try:
                if call is worker.opening:
                    self._note_opened(worker, cast("Opened", call.result()))
                elif call is worker.asked:
                    self._note_progress(worker, cast("int", call.result()))
                else:
                    self._take(worker, call)
            except Lost as lost:
                self._replace(worker, str(lost))
        self._replace_hanging()
        self._require_workers()

    def _note_opened(self, worker: _Worker[T], opened: Opened) -> None:
        worker.opening = None
        threads = f"cpu with {opened.threads} thread{'s' * (opened.threads > 1)}"
        device = threads if opened.device == "cpu" else opened.device
        note(f"Worker {worker.number + 1} of {self._share.processes}: {opened.host}, {device}.")

    def _note_progress(self, worker: _Worker[T], n_calls: int) -> None:
        worker.asked = None
        if n_calls != worker.n_calls:
            worker.n_calls, worker.moved_s = n_calls, time.monotonic()

    def _replace_hanging(self) -> None:
        """Ask the workers that have batches for their progress, and replace those that hang."""
        now = time.monotonic()
        paused, self._looked_s = now > self._looked_s + _PAUSE_S, now
        for worker in [worker for worker in self._workers if worker.jobs]:
            if paused:  # answers that came meanwhile may not have been seen yet
                worker.asked_s = worker.moved_s = now
            elif worker.asked is not None and now > worker.asked_s + SILENT_S:
                self._replace(worker, str(Hung(SILENT_S)))
            elif now > worker.moved_s + STUCK_S:
                self._replace(worker, f"Its model has not computed anything for {STUCK_S:,.0f} s.")
            elif worker.asked is None and now > worker.asked_s + _ASK_S:
                worker.asked, worker.asked_s = worker.process.call("n_calls"), now

    def _take(self, worker: _Worker[T], call: Call) -> None:
        job = worker.jobs[call]
        try:
            job.result = cast("EmbeddedBatch[None]", call.result())
        except Lost:
            raise
        except Exception as error:
            job.error = error
        del worker.jobs[call]
        worker.moved_s = time.monotonic()
        self._losses = 0

    def _replace(self, worker: _Worker[T], reason: str) -> None:
        """Start another worker, and queue the batches of the lost one again, in their order."""
        warn(f"Worker {worker.number + 1} has ended, and another one takes its work: {reason}")
        worker.process.end()
        self._losses += 1
        for job in worker.jobs.values():
            job.attempts += 1
            if job.attempts >= ATTEMPTS:
                raise ClusterError(
                    f"{job.attempts} workers have ended while they embedded the batch from "
                    f"{job.texts.sources[0] or job.texts.ids[0]} on: {reason} If their memory ran "
                    "out, lower --batch-tokens or give each worker a larger machine."
                )
        if self._losses > LOSSES * self._share.processes:
            raise ClusterError(
                f"{self._losses} workers have ended one after another without a result: {reason} "
                "The index holds all earlier batches; run the same command again to go on."
            )
        self._unsent.extendleft(reversed(worker.jobs.values()))
        self._workers[self._workers.index(worker)] = self._start(worker.number)

    def _require_workers(self) -> None:
        """While no worker has the model open, print a note after `_NOTE_S`; fail after `WAIT_S`."""
        now = time.monotonic()
        if any(worker.opening is None for worker in self._workers):
            self._last_worker_s, self._has_noted = now, False
            return
        needs = f"{self._share.cpus} free CPUs" + f" and {self._share.gpus} GPU" * self._share.gpus
        if now > self._last_worker_s + WAIT_S:
            raise ClusterError(
                f"No machine with {needs} has started a worker for {WAIT_S:.0f} s. Connect one "
                "with `ray start --address=...`, and run the same command again to go on."
            )
        if now > self._last_worker_s + _NOTE_S and not self._has_noted:
            self._has_noted = True
            note(f"Waiting for a machine with {needs}, and for the model on it.")
