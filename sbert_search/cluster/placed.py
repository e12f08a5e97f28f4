"""A state of a sharded index whose shards are searched by processes on a cluster.

This process, which has the search engine, opens the index too. It merges the answers of the
processes on the cluster, and reads word frequencies and the documents of hits. The processes on the
cluster compare vectors, compute BM25 scores and evaluate filters.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.cluster import holders as held
from sbert_search.cluster.connection import Call, Lost, Process, host_and_python
from sbert_search.cluster.holders import Holders, PendingAnswer
from sbert_search.cluster.shard_worker import SentMask, ShardedCommit, UnknownCommit
from sbert_search.errors import LostShards
from sbert_search.index.dense.exact import TopK
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.filters.structured import condition_text
from sbert_search.index.lexical.analyzer import NearWords
from sbert_search.index.lexical.bm25 import LexicalSearch, Matches
from sbert_search.index.lexical.vocabulary import Vocabulary
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import manifest as manifests
from sbert_search.records import Where


class FilterMask(RowMask):
    """The rows that a filter over the metadata admits, counted by the processes on the cluster.

    This process evaluates the filter itself, with ``marked``, only if a stage of the search reads
    ``parts`` or ``n_live``.
    """

    where: str
    _marked: Callable[[], RowMask]

    def __init__(self, where: str, n_docs: int, n_rows: int, marked: Callable[[], RowMask]) -> None:
        self.__dict__.update(where=where, n_docs=n_docs, n_rows=n_rows, _marked=marked)  # frozen

    @cached_property
    def parts(self) -> tuple[NDArray[np.bool_], ...]:
        """For each segment, which rows match."""
        return self._marked().parts

    @cached_property
    def n_live(self) -> tuple[int, ...]:
        """For each segment, the number of rows that a search without the filter can find."""
        return self._marked().n_live


class PlacedSnapshot(Snapshot):
    """The state of a sharded index after one commit, searched by processes on a cluster.

    ``put`` copies a value to the cluster for several calls. If ``partial``, `for_queries` may leave
    out lost shards.
    """

    def __init__(
        self,
        state: Snapshot,
        put: Callable[[object], object],
        holders: Callable[[], Holders],
        *,
        partial: bool,
    ) -> None:
        super().__init__(state.folder, state.manifest, parts=state.parts, shards=state.shards)
        path, record = str(self.path.absolute()), state.shards
        assert record is not None  # see `RayRunner.placed`
        self._key = f"{path} {hashlib.sha256(manifests.encode(record)).hexdigest()}"
        commit = ShardedCommit(
            self._key,
            path,
            record,
            tuple(part.manifest for part in self.parts),
            dict(self.columns),
            host_and_python()[1],
        )
        self._commit = put(commit)
        self._holders, self._partial = holders, partial
        self._for_all: PlacedSnapshot | None = None  # the state that this one is a copy of
        self._leaves_out = False
        self._turn: int | None = None
        self._first_segments = [0, *accumulate(len(part.segments) for part in self.parts)]

    def open(self) -> None:
        """Let each process open its shards, so that the first search need not."""
        opened = self._holders().open(self.n_shards, self._opening)
        _tell(message for messages in cast("list[list[str]]", opened) for message in messages)

    def for_queries(self, *, complete: bool = False) -> PlacedSnapshot:
        """Copy this state for some queries, all of which go to the same replica of each shard.

        With ``complete``, a lost shard is an error even if ``partial`` is set.
        """
        state = copy.copy(self)
        state._for_all, state._turn = self, self._holders().turn()
        state._leaves_out = self._partial and not complete
        return state

    @cached_property
    def lexical(self) -> LexicalSearch:
        """The statistics of all shards; `match` lets the processes search."""
        return self._for_all.lexical if self._for_all else super().lexical

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of all shards."""
        return self._for_all.vocabulary if self._for_all else super().vocabulary

    def search(
        self,
        queries: NDArray[np.float32],
        k: int,
        mask: RowMask | None = None,
        *,
        exact: bool = False,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the best rows of each query, as `Snapshot.search` does."""
        self._checked(queries, k)
        best = TopK.empty(len(queries), k)
        answers = self._ask("search", lambda shards: (queries, k, self._sent(mask, shards), exact))
        for answer in answers:
            scores, rows = cast("tuple[NDArray[np.float32], NDArray[np.int64]]", answer)
            found = rows >= 0
            best.offer(np.nonzero(found)[0], rows[found], scores[found])
        return best.scores, best.rows

    def match(
        self,
        queries: Sequence[str],
        k: int,
        mask: RowMask | None = None,
        near: NearWords | None = None,
        also: Sequence[NDArray[np.int64]] | None = None,
    ) -> list[Matches]:
        """Find the documents with the best BM25 scores, as `Snapshot.match` does."""
        terms, average = [self.lexical.weights(q, near) for q in queries], self.lexical.average
        answers = self._ask(
            "match", lambda shards: (terms, average, k, self._sent(mask, shards), also)
        )
        merged = []
        for number, each in enumerate(terms):
            parts = [answer[number] for answer in cast("list[list[Matches]]", answers)]
            docs = np.concatenate([np.empty(0, np.int64), *(part.docs for part in parts)])
            scores = np.concatenate([np.empty(0), *(part.scores for part in parts)])
            others = np.zeros(0 if also is None else len(also[number]))
            order = np.lexsort((docs, -scores))[:k]
            total = sum((part.also for part in parts), others)
            merged.append(Matches(docs[order], scores[order], total, each.most))
        return merged

    def filter_mask(self, where: Where) -> FilterMask:
        """Find the live rows that match a condition, as `Snapshot.filter_mask` does."""
        text = condition_text(where)  # processes get the filter as it was given, for messages
        counts = cast("list[tuple[int, int]]", self._ask("count", lambda shards: (where,)))
        n_docs, n_rows = sum(docs for docs, _ in counts), sum(rows for _, rows in counts)
        return FilterMask(text, n_docs, n_rows, partial(self.own_filter_mask, where))

    def _sent(self, mask: RowMask | None, shards: Sequence[int]) -> SentMask:
        if mask is None or isinstance(mask, FilterMask):
            return None if mask is None else mask.where
        segments = (range(*self._first_segments[shard : shard + 2]) for shard in shards)
        return [np.packbits(mask.parts[i]) for of_shard in segments for i in of_shard]

    def _ask(
        self, method: str, arguments: Callable[[tuple[int, ...]], tuple[object, ...]]
    ) -> list[object]:
        """Call a method of `ShardWorker` for all shards; return the answers."""
        wait_s = 0.0 if self._leaves_out else held.LOST_S
        question = partial(self._question, method, arguments)
        answered = self._holders().ask(self.n_shards, question, wait_s, self._turn)
        lost = [self.part_folders[number] for number in answered.lost]
        if lost and not self._leaves_out:
            allow = "" if self._partial else ", or allow answers without lost shards with --partial"
            raise LostShards(
                f"{', '.join(lost)} of {self.path} {'is' if len(lost) == 1 else 'are'} lost: no "
                f"process on the cluster holds {'it' if len(lost) == 1 else 'them'}. "
                f"{answered.reason} Connect a machine with `ray start --address=...`, or hold each "
                f"shard in several processes with --replicas{allow}."
            )
        self.missing = tuple(sorted({*self.missing, *lost}))
        return answered.answers

    def _question(
        self,
        method: str,
        arguments: Callable[[tuple[int, ...]], tuple[object, ...]],
        process: Process,
        shards: tuple[int, ...],
    ) -> PendingAnswer:
        call = partial(process.call, method, self._key, shards, *arguments(shards))
        return _Question(call(), partial(self._opening, process, shards), call)

    def _opening(self, process: Process, shards: tuple[int, ...]) -> Call:
        return process.call("open", self._commit, shards)


class _Question(NamedTuple):
    """A call about a commit, which a process may have to open first."""

    first: Call
    opening: Callable[[], Call]
    again: Callable[[], Call]

    def result(self, timeout_s: float) -> object:
        """Wait for the answer; ``timeout_s`` does not include the time to open the commit."""
        try:
            return self.first.result(timeout_s)
        except UnknownCommit:
            _tell(cast("list[str]", self.opening().result(held.OPEN_S)))
        try:
            return self.again().result(timeout_s)
        except UnknownCommit:
            raise Lost("A process has ended twice during a question.") from None


def _tell(messages: Iterable[str]) -> None:
    """Show the warnings of processes, as this process shows its own."""
    for message in dict.fromkeys(messages):
        warnings.warn(message, stacklevel=2)
