"""`RayRunner`: embeds documents and searches shards on the machines of a Ray cluster."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from threading import RLock
from types import TracebackType
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np

from sbert_search.base.memory import MAX_WAITING_BYTES
from sbert_search.base.threads import prefetch
from sbert_search.cluster.connection import (
    MORE_MACHINES,
    Cluster,
    Share,
    connect,
    host_and_python,
    share_of,
)
from sbert_search.cluster.holders import ANSWER_S, Holders
from sbert_search.cluster.placed import PlacedSnapshot
from sbert_search.cluster.pool import Job, OpenModel, Pool, Texts
from sbert_search.embed.embedder import Embedder
from sbert_search.embed.pipeline import EmbeddedBatch, OnTruncate, TruncatedTexts
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ClusterError, ConfigError
from sbert_search.index.snapshot import Snapshot
from sbert_search.records import Document
from sbert_search.text.tokens.chunking import AT_BORDERS, Chunking

T = TypeVar("T")


class RayRunner:
    """Embeds documents, or searches the shards of an index, in processes on a Ray cluster.

    Use it as a context manager, and pass it as ``runner`` to `Index.build`, `Index.build`,
    `embed_to_parquet` or `SearchEngine`:

        with RayRunner("10.0.0.1:6379") as runner:
            Index.build("corpus.jsonl", out="corpus.shards", runner=runner)
        with RayRunner("10.0.0.1:6379", replicas=2) as runner:
            hits = SearchEngine("corpus.shards", runner=runner).search("a query")

    In a build, this process reads the documents and writes the index. Processes that have opened a
    model stay until this context ends, for further builds with the same embedder. A process that
    ends is replaced, and its batches are embedded again. The vectors are bit for bit those of a
    build without Ray, if all machines have the same kind of processor and each process computes
    with the number of CPU threads that such a build uses.

    In a search, each process holds some shards, which it opens by the path of the index. Hits and
    scores are those of a search without Ray. A process that ends is started again, and others that
    hold its shards answer meanwhile. A process that does not answer within ``shard_timeout_s`` is
    ended and replaced. If no process has held a shard for 30 seconds, the search raises
    `LostShards`. With ``partial``, the search does not wait for such a shard: it leaves out the
    documents of the shard and names the shard in `Hits.missing`.

    A runner has processes for embedding or for searching, not both: a search ends the processes of
    a build, and a build ends those of a search.

    Args:
        address: Address of a cluster that runs, ``HOST:PORT`` or ``auto``. None: the variable
            RAY_ADDRESS, or else a cluster of this machine alone.
        workers: Number of processes. None: the number of GPUs if the model computes on GPUs, else
            the number of machines.
        cpus: CPUs of each process, which are its threads if the model computes on CPUs. None: the
            largest number with which all processes fit on the machines.
        replicas: Number of processes that hold each shard in a search, at most ``workers``.
        partial: Whether `SearchEngine.search`, `search_many`, `iter_hits` and `similar` may leave
            out lost shards.
        shard_timeout_s: Time in which a process must search its shards, in seconds. A process that
            must open files first has ten minutes for that, and then this time.

    Raises:
        ConfigError: ``shard_timeout_s`` is not above 0.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        cpus: int | None = None,
        replicas: int = 1,
        partial: bool = False,
        shard_timeout_s: float = ANSWER_S,
    ) -> None:
        if not (shard_timeout_s > 0 and math.isfinite(shard_timeout_s)):
            raise ConfigError(f"shard_timeout_s is {shard_timeout_s}; it must be a number above 0.")
        self._address, self._n_workers, self._cpus = address, workers, cpus
        self._shard_timeout_s = shard_timeout_s
        self._replicas, self._partial, self._lock = replicas, partial, RLock()
        self._held: Holders | None = None
        self._placed = WeakKeyDictionary[Snapshot, PlacedSnapshot]()
        self._cluster: Cluster | None = None
        self._pool: Pool[object] | None = None
        self._embedder: TextEmbedder | None = None
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> RayRunner:
        """Connect to the cluster.

        Raises:
            ConfigError: Ray is not installed, ``workers`` or ``cpus`` is below 1, or the cluster
                has too few CPUs.
            ClusterError: The cluster cannot be reached.
        """
        with contextlib.ExitStack() as opened:
            self._cluster = opened.enter_context(connect(self._address))
            self._share(on_gpu=False)
            self._resources = opened.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect from the cluster; end it if it was started for this runner."""
        self._end_pool()
        self._end_holders()
        self._cluster = None
        self._resources.close()

    def __call__(
        self,
        batches: Iterable[tuple[Sequence[Document], T]],
        embedder: TextEmbedder,
        *,
        on_truncate: OnTruncate = "warn",
        chunking: Chunking = AT_BORDERS,
        advance: Callable[[int], None] = lambda n: None,
        waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> Generator[EmbeddedBatch[T]]:
        """Embed batches on the cluster, as `embed_batches` does in this process.

        Raises:
            ConfigError: The model is an object in memory, or the cluster has too few CPUs or GPUs.
            ClusterError: A machine has another model, the model fails on it, or too many processes
                have ended; or the runner is not connected.
            CorpusError: As for `embed_batches`.
        """
        pool: Pool[tuple[Sequence[Document], T]] = self._pool_of(embedder)
        truncated = TruncatedTexts()
        with (
            closing(prefetch(_jobs(batches, embedder.dim, on_truncate, chunking))) as read,
            # The other half of `waiting_bytes` is for batches in the queues of the two threads.
            closing(prefetch(pool.results(read, waiting_bytes // 2))) as done,
        ):
            for job in done:
                if job is None:
                    continue
                batch = _embedded(job)
                advance(len(batch.documents))
                truncated.add(batch.lost_tokens)
                yield batch
                del batch, job
        truncated.report(embedder)

    def placed(self, state: Snapshot) -> PlacedSnapshot:
        """Return a state of a sharded index that is searched on the cluster.

        Raises:
            ConfigError: The index has no shards, or the cluster has too few CPUs for ``workers`` or
                ``replicas`` processes.
            ClusterError: A process cannot be started, a machine cannot open the index, or the
                runner is not connected.
        """
        cluster = self._connection()
        if not state.is_sharded:
            raise ConfigError(
                f"{state.path} has no shards, and --runner ray searches shards. Build the index "
                "with --shards N, or search without --runner ray."
            )
        # No lock is needed to read the dict. Another thread may hold the lock for seconds, while
        # processes open another state of the index.
        if (placed := self._placed.get(state)) is not None:
            return placed
        with self._lock:
            self._holders()
            if state not in self._placed:
                placed = PlacedSnapshot(state, cluster.put, self._holders, partial=self._partial)
                placed.open()
                self._placed[state] = placed
            return self._placed[state]

    def _holders(self) -> Holders:
        if (held := self._held) is not None:  # without the lock, as in `placed`
            return held
        with self._lock:
            if self._held is None:
                cluster = self._connection()
                self._end_pool()
                share = self._share_with_replicas()
                self._held = Holders(cluster, share, self._replicas, self._shard_timeout_s)
            return self._held

    def _end_holders(self) -> None:
        if self._held is not None:
            self._held.end()
        self._held = None
        self._placed.clear()

    def _pool_of(self, embedder: TextEmbedder) -> Pool[T]:
        """Return the workers of an embedder; end those of another embedder or of a search."""
        cluster = self._connection()
        if self._pool is not None and self._embedder is embedder:
            return cast("Pool[T]", self._pool)
        self._end_pool()
        self._end_holders()
        on_gpu = isinstance(embedder, Embedder) and embedder.device.startswith("cuda")
        share = self._share(on_gpu=on_gpu)
        make: Callable[[], TextEmbedder] = lambda: embedder  # noqa: E731
        if isinstance(embedder, Embedder):
            make = embedder.opener("cuda" if on_gpu else embedder.device)
        model = OpenModel(make, embedder.identity, host_and_python()[1], share.cpus)
        pool: Pool[T] = Pool(cluster, model, share)
        self._pool, self._embedder = cast("Pool[object]", pool), embedder
        return pool

    def _connection(self) -> Cluster:
        if self._cluster is None:
            raise ClusterError(
                "The RayRunner is not connected. Use it inside of its context: `with "
                "RayRunner(...) as runner:`."
            )
        return self._cluster

    def _share(self, *, on_gpu: bool) -> Share:
        machines = self._connection().machines()
        return share_of(machines, self._n_workers, on_gpu=on_gpu, cpus=self._cpus)

    def _share_with_replicas(self) -> Share:
        share = self._share(on_gpu=False)
        if not 1 <= self._replicas <= share.processes:
            remedy = "pass more --workers" if self._n_workers else MORE_MACHINES
            raise ConfigError(
                f"replicas is {self._replicas}, and the cluster gives {share.processes:,} "
                "processes; it must be from 1 to this number. Pass fewer --replicas, or "
                f"{remedy}."
            )
        return share

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.end()
        self._pool = self._embedder = None


def _jobs(
    batches: Iterable[tuple[Sequence[Document], T]],
    dim: int,
    on_truncate: OnTruncate,
    chunking: Chunking,
) -> Iterator[Job[tuple[Sequence[Document], T]]]:
    """Yield a job for each batch; the job of an empty batch has its result already."""
    for documents, payload in batches:
        texts = Texts(
            [document.doc_id for document in documents],
            [document.source for document in documents],
            [document.full_text for document in documents],
            on_truncate,
            chunking,
        )
        held_bytes = sum(document.held_bytes for document in documents)
        job = Job(texts, (documents, payload), held_bytes)
        if not documents:
            job.result = _no_passages(dim)
        yield job


def _embedded(job: Job[tuple[Sequence[Document], T]]) -> EmbeddedBatch[T]:
    assert job.result is not None
    documents, payload = job.payload
    # `Any`: the payload has another type than that of the result, which is none.
    result: EmbeddedBatch[Any] = job.result
    return replace(result, documents=documents, payload=payload, held_bytes=job.held_bytes)


def _no_passages(dim: int) -> EmbeddedBatch[None]:
    small, large = np.empty(0, np.int32), np.empty(0, np.int64)
    vectors = np.empty((0, dim), np.float32)
    return EmbeddedBatch((), large, small, large, large, small, small, vectors, large, None, 0)
