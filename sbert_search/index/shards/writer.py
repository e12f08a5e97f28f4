"""Changing a sharded index, and backing it up; one commit covers all shards."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import CommitUnknown, IndexStoreError
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.shards.held import HeldShards
from sbert_search.index.shards.manifest import shards_of
from sbert_search.index.shards.opening import joined, naming_shard
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import BuildCursor, ColumnType, Manifest
from sbert_search.index.storage.segment_writer import IntArray, PassageBatch
from sbert_search.index.storage.transaction import remove_unreferenced
from sbert_search.index.writer import BlankDocuments, IndexWriter
from sbert_search.records import Document

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """The documents of a batch that belong to one shard; attributes as of `PassageBatch`."""

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
        """Take documents of a batch and their passages, both by ascending positions."""
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
    """The only writer of a sharded index; made by `IndexStore.writer`.

    Each method first writes durable files in the shards. Then one commit makes the new states of
    all shards current. Only `compact` and `finish_build` make a commit for each shard.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        shards: HeldShards,
        publish: Callable[[Snapshot], None],
    ) -> None:
        super().__init__(snapshot, shards.parts[0], lambda _: None)
        self._shards, self._publish_union = shards, publish
        self._writers = [
            IndexWriter(state, shard, lambda _: None, snapshot.n_shards)
            for state, shard in zip(snapshot.parts, shards.parts, strict=True)
        ]
        self._is_open = True

    def add_columns(self, columns: Mapping[str, ColumnType]) -> None:
        """Add the metadata columns of a source to those of the index, from the next commit on."""
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
        """Add passages durably to their shards; arguments as for `IndexWriter.commit`.

        Every shard stores the cursor, which is the progress of the build. If ``rows`` is None, the
        passages get row numbers in the order of the batch, from the next number that no shard uses.
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
        """Refuse documents without text that are given as columns of ids and vectors."""
        raise IndexStoreError(
            f"{self.path} is a sharded index, which takes vectors with Index.build(vectors=...) or "
            "add(vectors=...), and not with from_vectors."
        )

    def start_over(self, empty: Manifest) -> None:
        """Replace everything in all shards by an empty state."""
        with self.together():
            for writer in self._writers:
                writer.start_over(empty)
        self._columns = dict(empty.columns)

    def settle(self, *, memory_bytes: int | None = None) -> bool:
        """Merge segments at the end of an update; return whether anything was rewritten."""
        with self.together():
            return any(self._each(lambda writer: writer.settle(memory_bytes=memory_bytes)))

    def compact(self, *, memory_bytes: int | None = None, retrain: bool = False) -> None:
        """Merge segments and drop dead rows in one shard after another, each in its own commit."""
        for writer, name in zip(self._writers, self.snapshot.part_folders, strict=True):
            with self.together(), naming_shard(name):
                writer.compact(memory_bytes=memory_bytes, retrain=retrain)

    def finish_build(self, *, memory_bytes: int | None = None) -> None:
        """Compact the shards and mark the build as finished."""
        self.compact(memory_bytes=memory_bytes)
        with self.together():
            for writer in self._writers:
                if cursor := writer.snapshot.manifest.build:
                    writer.commit(None, cursor=dataclasses.replace(cursor, finished=True))

    def repair(self) -> list[str]:
        """Rebuild damaged derived files; list removed ones as ``shard-0001/ann/000003.faiss``."""
        dropped: set[str] = set()
        with self.together():
            repaired = self._each(lambda writer: writer.repair())
            for folder, names in zip(self.snapshot.part_folders, repaired, strict=True):
                dropped |= {f"{folder}/{name}" for name in names}
        for writer, shard in zip(self._writers, self._shards.parts, strict=True):
            strays = remove_unreferenced(shard, writer.snapshot.manifest, grace_s=0.0)
            dropped |= {f"{shard.folder.path.name}/{name}" for name in strays}
        return sorted(dropped)

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Change the settings of lexical search in all shards."""
        with self.together():
            self._each(lambda writer: writer.set_lexical(settings))

    def delete_documents(self, first_rows: NDArray[np.int64]) -> None:
        """Delete documents, given the rows of their first passages, int64 (n_docs,)."""
        if not len(first_rows):
            return
        with self.together():
            for writer in self._writers:
                writer.delete_documents(first_rows[writer.snapshot.holds(first_rows)])

    def _each(self, change: Callable[[IndexWriter], T]) -> list[T]:
        """Change each shard and list the results; an error of damage names the shard's folder."""
        results = []
        for writer, name in zip(self._writers, self.snapshot.part_folders, strict=True):
            with naming_shard(name):
                results.append(change(writer))
        return results

    def _routed(
        self, batch: PassageBatch, rows: NDArray[np.int64] | None
    ) -> dict[int, tuple[RoutedBatch, NDArray[np.int64]]]:
        """Split a batch and its rows by shard; None: the passages get the next unused rows."""
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
        """Yield the writers of the shards; all of their commits become current at once, or none."""
        if not self._is_open:
            raise IndexStoreError(
                f"{self.path}: an earlier commit of this writer failed at its last step. Open the "
                "index again."
            )
        before = [writer.snapshot for writer in self._writers]
        shards = self._shards
        for shard in shards.parts:
            shard.begin()
        try:
            yield self._writers
            if any(shard.waiting for shard in shards.parts):
                self._is_open = False  # no other commit until the outcome of this one is known
                assert self.snapshot.shards is not None
                record = shards.commit(self.snapshot.shards)
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
        if self._is_open:  # no shard has a new manifest
            shards.publish()
        else:
            states = [writer.snapshot for writer in self._writers]
            self.snapshot = joined(self.snapshot.folder, record, states)
            shards.publish()
            self._is_open = True
            self._publish_union(self.snapshot)

    def _undo(self, before: Sequence[Snapshot], error: BaseException) -> None:
        """Reset all shards to the states in ``before``, unless the commit may have been made."""
        if self._is_open or isinstance(error, (OSError, IndexStoreError)):
            for writer, shard, old in zip(self._writers, self._shards.parts, before, strict=True):
                writer.snapshot = old
                shard.undo(old.manifest)
            self._is_open = True
