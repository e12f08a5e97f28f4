"""Changing a sharded index: documents go to their shards, and one commit covers all shards."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import CommitUnknown, IndexStoreError
from sbert_search.index.lexical_settings import LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import BuildCursor, ColumnType, StoreSettings
from sbert_search.index.storage.segment_rows import IntArray, PassageBatch
from sbert_search.index.storage.transaction import remove_unreferenced
from sbert_search.index.writer import BlankDocuments, IndexWriter
from sbert_search.records import Document
from sbert_search.shards.backup import backup_shards
from sbert_search.shards.held import HeldShards
from sbert_search.shards.routing import shards_of
from sbert_search.shards.snapshot import ShardedSnapshot


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """Those documents of a batch that belong to one shard; the attributes are of `PassageBatch`."""

    documents: Sequence[Document]
    doc_of: NDArray[np.int64]
    chunk: IntArray
    char_start: IntArray
    char_end: IntArray
    n_tokens: IntArray
    lost_tokens: IntArray
    vectors: NDArray[np.floating]
    given: bool

    @classmethod
    def of(cls, batch: PassageBatch, docs: NDArray[np.int64], at: NDArray[np.int64]) -> RoutedBatch:
        """Take some documents of a batch, with their passages.

        Args:
            batch: The batch.
            docs: Numbers of the documents in the batch, ascending, (n_docs,).
            at: Numbers of their passages in the batch, ascending, (n_rows,).
        """
        return cls(
            documents=[batch.documents[i] for i in docs.tolist()],
            doc_of=np.searchsorted(docs, np.asarray(batch.doc_of)[at]),
            chunk=batch.chunk[at],
            char_start=batch.char_start[at],
            char_end=batch.char_end[at],
            n_tokens=batch.n_tokens[at],
            lost_tokens=batch.lost_tokens[at],
            vectors=batch.vectors[at],
            given=batch.given,
        )


class ShardedWriter(IndexWriter):
    """The only writer of a sharded index; made by `ShardedStore.writer`.

    Every change is made durable in the shards first, and then current in all of them by one commit.

    Args:
        snapshot: The newest state.
        shards: The opened folders with their locks.
        publish: Called with the new state after each commit.

    Attributes:
        snapshot: The state after the last commit.
    """

    snapshot: ShardedSnapshot

    def __init__(
        self,
        snapshot: ShardedSnapshot,
        shards: HeldShards,
        publish: Callable[[ShardedSnapshot], None],
    ) -> None:
        super().__init__(snapshot, shards.shards[0], lambda _: None)
        self._shards, self._publish_union = shards, publish
        self._writers = [
            IndexWriter(state, shard, lambda _: None, len(snapshot.shards))
            for state, shard in zip(snapshot.shards, shards.shards, strict=True)
        ]
        self._is_open = True

    def add_columns(self, columns: Mapping[str, ColumnType]) -> None:
        """Add the metadata columns of a source; see `IndexWriter.add_columns`."""
        super().add_columns(columns)
        for writer in self._writers:
            writer.add_columns(self._columns)

    def commit(
        self,
        batch: PassageBatch | None,
        *,
        cursor: BuildCursor | None = None,
        starts_block: bool = True,
        ends_block: bool = True,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Add passages durably to their shards; arguments and errors as for `IndexWriter.commit`.

        Every shard stores the cursor. Rows are numbered over all shards, in the order of the batch.
        """
        documents = batch.documents if batch is not None else ()
        if not documents and cursor is None:
            return
        parts = self._routed(batch, rows) if batch is not None and documents else {}
        first = self.snapshot.manifest.next_row
        with self.together():
            for number, writer in enumerate(self._writers):
                if cursor and starts_block and documents:
                    writer.leave_rows(first + 1)
                part, part_rows = parts.get(number, (None, None))
                writer.commit(
                    part,
                    cursor=cursor,
                    starts_block=starts_block,
                    ends_block=ends_block,
                    rows=part_rows,
                )
        self._forget(documents)

    def commit_blank(self, documents: BlankDocuments, *, cursor: BuildCursor) -> None:
        """Refuse documents that are given as columns, without text.

        Raises:
            IndexStoreError: Always.
        """
        raise IndexStoreError(
            f"{self.path} is a sharded index, which takes vectors with Index.build(vectors=...) or "
            "add(vectors=...), and not with from_vectors."
        )

    def start_over(
        self, settings: StoreSettings, columns: Mapping[str, ColumnType], build: BuildCursor
    ) -> None:
        """Replace everything by an empty state; see `IndexWriter.start_over`."""
        with self.together():
            for writer in self._writers:
                writer.start_over(settings, columns, build)
        self._columns = dict(columns)

    def settle(self, *, memory_bytes: int | None = None) -> bool:
        """Merge segments at the end of an update; see `IndexWriter.settle`."""
        with self.together():
            return any([w.settle(memory_bytes=memory_bytes) for w in self._writers])

    def compact(self, *, memory_bytes: int | None = None, retrain: bool = False) -> None:
        """Merge segments and drop dead rows, one shard at a time; see `IndexWriter.compact`."""
        for writer in self._writers:
            with self.together():
                writer.compact(memory_bytes=memory_bytes, retrain=retrain)

    def finish_build(self, *, memory_bytes: int | None = None) -> None:
        """Compact the shards and mark the build as finished; see `IndexWriter.finish_build`."""
        self.compact(memory_bytes=memory_bytes)
        with self.together():
            for writer in self._writers:
                if cursor := writer.snapshot.manifest.build:
                    writer.commit(None, cursor=dataclasses.replace(cursor, finished=True))

    def repair(self) -> list[str]:
        """Write damaged derived files again; see `IndexWriter.repair`."""
        dropped: set[str] = set()
        with self.together():
            for writer, record in zip(self._writers, self.snapshot.record.shards, strict=True):
                dropped |= {f"{record.folder}/{name}" for name in writer.repair()}
        for writer, shard in zip(self._writers, self._shards.shards, strict=True):
            strays = remove_unreferenced(shard, writer.snapshot.manifest, grace_s=0.0)
            dropped |= {f"{shard.folder.path.name}/{name}" for name in strays}
        return sorted(dropped)

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Change the settings of lexical search; see `IndexWriter.set_lexical`."""
        with self.together():
            for writer in self._writers:
                writer.set_lexical(settings)

    def backup_to(self, target: str | Path) -> None:
        """Copy this state to another folder; see `backup.backup_shards`."""
        backup_shards(self.snapshot, Path(target))

    def delete_documents(self, first_rows: NDArray[np.int64]) -> None:
        """Delete documents, given the rows of their first passages."""
        if not len(first_rows):
            return
        with self.together():
            for writer in self._writers:
                writer.delete_documents(first_rows[writer.snapshot.holds(first_rows)])

    def _routed(
        self, batch: PassageBatch, rows: NDArray[np.int64] | None
    ) -> dict[int, tuple[RoutedBatch, NDArray[np.int64]]]:
        """Return, by the number of each shard, its part of a batch and the rows of its passages."""
        if rows is None:
            first = self.snapshot.manifest.next_row
            rows = np.arange(first, first + len(batch.doc_of))
        shards = shards_of([document.doc_id for document in batch.documents], len(self._writers))
        parts = {}
        for number in np.unique(shards).tolist():
            docs = np.flatnonzero(shards == number)
            at = np.flatnonzero(shards[np.asarray(batch.doc_of)] == number)
            parts[number] = RoutedBatch.of(batch, docs, at), rows[at]
        return parts

    @contextlib.contextmanager
    def together(self) -> Iterator[Sequence[IndexWriter]]:
        """Yield the writers of the shards; all of their commits become current at the end, or none.

        Raises:
            IndexStoreError: The disk failed; the index is as before.
            CommitUnknown: The last step of the commit failed; reopen the index to see its state.
        """
        if not self._is_open:
            raise IndexStoreError(
                f"{self.path}: an earlier commit of this writer failed at its last step. Open the "
                "index again."
            )
        before = [writer.snapshot for writer in self._writers]
        shards = self._shards
        for shard in shards.shards:
            shard.begin()
        try:
            yield self._writers
            if any(shard.waiting for shard in shards.shards):
                self._is_open = False  # until the outcome is known
                record = shards.commit(self.snapshot.record)
        except CommitUnknown:
            raise
        except OSError as error:
            self._undo(before, error)
            raise IndexStoreError(
                f"{self.path}: writing failed, {error}. The index is as it was before this commit; "
                "free or repair the disk and run the command again."
            ) from error
        except BaseException as error:
            self._undo(before, error)
            raise
        if self._is_open:  # nothing was changed
            shards.publish()
        else:
            states = [writer.snapshot for writer in self._writers]
            self.snapshot = ShardedSnapshot(self.snapshot.folder, record, states)
            shards.publish()
            self._is_open = True
            self._publish_union(self.snapshot)

    def _undo(self, before: Sequence[Snapshot], error: BaseException) -> None:
        """Return all shards to the states in ``before``, unless the commit may have been made."""
        if self._is_open or isinstance(error, (OSError, IndexStoreError)):
            for writer, shard, old in zip(self._writers, self._shards.shards, before, strict=True):
                writer.snapshot = old
                shard.undo(old.manifest)
            self._is_open = True
