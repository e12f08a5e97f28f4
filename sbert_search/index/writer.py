"""Changing an index: classify documents, commit passages, delete, compact, repair."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.threads import prefetch
from sbert_search.errors import IndexStoreError
from sbert_search.index.lexical.postings import Postings, with_lexical, write_lexical
from sbert_search.index.lexical.vocabulary import WordList, lists_words
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import ids
from sbert_search.index.storage.manifest import BuildCursor, ColumnType, Manifest, VectorSettings
from sbert_search.index.storage.segment_writer import (
    PassageBatch,
    SegmentPart,
    make_part,
    write_segment,
)
from sbert_search.index.storage.transaction import (
    HeldFolder,
    Transaction,
    remove_unreferenced,
    transaction,
)
from sbert_search.index.upkeep import backup, compaction, merge_policy
from sbert_search.index.upkeep.check import damaged_derived_files
from sbert_search.records import Document


class Outcome(enum.Enum):
    """What adding a document would do."""

    NEW = "new"  # the index has no document with this id
    REPLACE = "replace"  # the index has the id with other content, which is replaced
    DUPLICATE = "duplicate"  # the index has the id with the same content: nothing to do
    CONFLICT = "conflict"  # the index has the id with other content, which must not be replaced


class BlankDocuments(Protocol):
    """New documents that have an id and a vector, but no text."""

    @property
    def id_hashes(self) -> NDArray[np.uint64]:
        """Hashes of the ids, (n_docs,)."""

    @property
    def contents(self) -> NDArray[np.uint64]:
        """Hashes of the contents, (n_docs,)."""

    def parts(self, first_row: int, settings: VectorSettings) -> Iterable[SegmentPart]:
        """Yield the documents in parts of a segment; the first document gets ``first_row``."""


class IndexWriter:
    """Changes an index while it holds the lock of the index; made by `IndexStore.writer`.

    `classify` may run in another thread than `commit`. ``publish`` is called with the new state,
    which is then in `snapshot`, after each commit. ``n_shards`` is the number of shards of the
    sharded index of which this index is a shard; 1: it is not a shard.

    After an error of a method the index is as before, unless the message says that the commit is
    done. After `CommitUnknown` the old or the new state holds; reopen the index to see which one.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        held_folder: HeldFolder,
        publish: Callable[[Snapshot], None],
        n_shards: int = 1,
    ) -> None:
        self.snapshot, self._n_shards = snapshot, n_shards
        self._held_folder, self._publish = held_folder, publish
        # For each id of documents that `classify` accepted and that are not yet committed: the hash
        # of the newest content, and the number of such documents with this id.
        self._pending: dict[str, tuple[int, int]] = {}
        self._columns = dict(snapshot.columns)
        self._next_row = 0  # see `leave_rows`
        self._guard = threading.Lock()  # guards _pending, which two threads change

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self.snapshot.path

    def add_columns(self, columns: Mapping[str, ColumnType]) -> None:
        """Add metadata columns from the next commit on; stored values must fit their types."""
        merged = columns_of.merge(self._columns, columns)
        for name, kind in self._columns.items():
            if kind != merged[name] and not self.snapshot.widens(name):
                held, fails = ("integers", "round") if kind == "int64" else ("texts", "refuse")
                raise IndexStoreError(
                    f"The metadata column {name!r} holds {held} in the index that {merged[name]}, "
                    f"its type in the source, would {fails}; rename the column in the source."
                )
        self._columns = merged

    def leave_rows(self, next_row: int) -> None:
        """Let the next commit raise ``next_row``, the lowest unused row, to at least this number.

        A sharded build spreads the documents of each block of the input over the shards. If the
        first commit of a block has no document for this shard, the shard's last segment belongs to
        an earlier block, and later commits of the block must not extend that segment. Raising
        ``next_row`` leaves a gap behind the rows of that segment, and `commit` extends no segment
        that such a gap follows.
        """
        self._next_row = next_row

    def classify(
        self,
        documents: Sequence[Document],
        mode: Literal["add", "upsert"] = "add",
        vectors: NDArray[np.float32] | None = None,
    ) -> list[Outcome]:
        """Return what adding each document would do, before it is embedded.

        Documents are compared with committed documents, and with documents that were accepted (NEW
        or REPLACE) before and are not yet committed. Each accepted document must be committed once,
        in the order in which documents were classified. Given ``vectors`` (n_docs, dim) belong to
        the content.
        """
        contents = ids.hash_contents(documents, vectors).tolist()
        with self._guard:
            rows, known = self.snapshot.find([document.doc_id for document in documents])
            each = zip(documents, contents, rows.tolist(), known.tolist(), strict=True)
            return [
                self._classify_one(document.doc_id, content, stored if row >= 0 else None, mode)
                for document, content, row, stored in each
            ]

    def commit(
        self,
        batch: PassageBatch | None,
        *,
        cursor: BuildCursor | None = None,
        starts_block: bool = True,
        ends_block: bool = True,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Add documents with their passages in one commit; replace documents with the same ids.

        A build reads its input in blocks of rows. The documents of a block form one segment, even
        if they are added in several commits. A resumed build therefore makes and merges the same
        segments as an uninterrupted one. If there are many segments, a second commit merges them.

        Args:
            batch: Documents and their passages; None: only store the cursor.
            cursor: Progress of the build after this batch; None: the stored progress stays.
            starts_block: Whether the batch has the first rows of its block of the input. If not,
                and if there is a cursor, the batch is added to the last segment, which holds the
                earlier rows of the block. (In a shard it may not; see `leave_rows`.)
            ends_block: Whether the batch has the last rows of its block; segments are merged only
                after such a batch.
            rows: The row of each passage, int64 (n_rows,), ascending, above all rows in use, and
                consecutive for the passages of a document; None: the next unused rows.
        """
        batch = batch if batch is not None and len(batch.documents) else None
        if batch is None and cursor is None:
            return
        old = self.snapshot.manifest
        of_block = old.segments and old.segments[-1].row_end == old.next_row
        extends = bool(cursor and of_block and not starts_block)
        with self._rewriting() if extends else self._transaction() as work:
            new = dataclasses.replace(
                old,
                columns=self._columns,
                build=cursor or old.build,
                next_row=max(old.next_row, self._next_row),
            )
            new = self._with_batch(work, new, batch, rows, extends=extends) if batch else new
            work.commit(new)
        self._forget(batch.documents if batch else ())
        if ends_block and (groups := merge_policy.groups_after_commit(self.snapshot)):
            with self._rewriting() as work:
                work.commit(compaction.merge_segments(work, self.snapshot, groups))

    def commit_blank(self, documents: BlankDocuments, *, cursor: BuildCursor) -> None:
        """Add new documents without text as one segment, in one commit; none: only the cursor."""
        old = self.snapshot.manifest
        n_rows, first_row = len(documents.id_hashes), old.next_row
        with self._transaction() as work:
            new = dataclasses.replace(old, build=cursor)
            if n_rows:
                rows = np.arange(first_row, first_row + n_rows)
                with contextlib.closing(
                    prefetch(documents.parts(first_row, old.settings))
                ) as parts:
                    segment = write_segment(
                        work.folder,
                        work.new_number(),
                        parts,
                        table=ids.make_table(documents.id_hashes, rows, documents.contents),
                        n_rows=n_rows,
                        manifest=old,
                    )
                if old.lexical:
                    postings = [(Postings.of_blank(n_rows), None)]
                    words = [WordList.of(Counter())] if lists_words(n_rows) else None
                    lexical = write_lexical(work.folder, work.new_number(), postings, words)
                    segment = segment.with_lexical(lexical)
                segments = (*old.segments, segment)
                new = dataclasses.replace(new, segments=segments, next_row=first_row + n_rows)
            work.commit(new)

    def delete(self, doc_ids: Sequence[str]) -> list[str]:
        """Delete documents by id; return the ids that the index does not hold."""
        rows = self.snapshot.lookup(doc_ids)
        self.delete_documents(rows[rows >= 0])
        return [doc_id for doc_id, row in zip(doc_ids, rows, strict=True) if row < 0]

    def delete_where(self, where: str) -> int:
        """Delete the documents that match an SQL condition; return their number."""
        mask = self.snapshot.filter_mask(where)
        segments = zip(self.snapshot.segments, mask.parts, strict=True)
        first_rows = [segment.rows[part & (segment.chunks == 0)] for segment, part in segments]
        self.delete_documents(np.concatenate([np.empty(0, np.int64), *first_rows]))
        return mask.n_docs

    def delete_documents(self, first_rows: NDArray[np.int64]) -> None:
        """Delete documents, given the rows of their first passages."""
        if len(first_rows):
            with self._transaction() as work:
                work.commit(self._with_dead(work, work.old, first_rows))

    def start_over(self, empty: Manifest) -> None:
        """Commit a state without documents, with which another build of the index starts."""
        with self._transaction() as work:
            work.commit(empty)
        self._columns = dict(empty.columns)

    def settle(self, *, memory_bytes: int | None = None) -> bool:
        """Merge segments and tombstones after an update; return whether anything was rewritten."""
        groups = merge_policy.groups_after_update(self.snapshot, self._n_shards)
        lacks_ann = merge_policy.lacks_ann(self.snapshot.manifest, self._n_shards)
        many_tombstones = len(self.snapshot.manifest.tombstones) > merge_policy.MAX_TOMBSTONES
        if not (groups or lacks_ann or many_tombstones):
            return False
        with self._rewriting() as work:
            new = compaction.merge_segments(work, self.snapshot, groups)
            if groups or lacks_ann:
                new = compaction.with_ann(
                    work,
                    self.snapshot,
                    new,
                    memory_bytes=memory_bytes,
                    n_shards=self._n_shards,
                )
            work.commit(with_lexical(work, new, words=False))
        return True

    def compact(self, *, memory_bytes: int | None = None, retrain: bool = False) -> None:
        """Merge segments, drop dead rows, and build missing FAISS files and postings.

        ``retrain``: train FAISS again and rebuild all FAISS files.
        """
        self._compact(self.snapshot.manifest.build, memory_bytes, retrain)

    def finish_build(self, *, memory_bytes: int | None = None) -> None:
        """Compact the index and mark its build as finished."""
        cursor = self.snapshot.manifest.build
        finished = dataclasses.replace(cursor, finished=True) if cursor else None
        self._compact(finished, memory_bytes)

    def repair(self) -> list[str]:
        """Remove damaged derived files and unreferenced files, and build missing derived files.

        Damaged files of documents, vectors and ids stay; they must be restored from a backup.
        Returns the names of the removed files.
        """
        old = self.snapshot.manifest
        dropped = damaged_derived_files(self._held_folder.folder, old)
        with self._transaction() as work:
            new = compaction.with_ann(
                work, self.snapshot, old.without(dropped), n_shards=self._n_shards
            )
            new = with_lexical(work, new)
            if new != old:
                work.commit(new)
        removed = remove_unreferenced(self._held_folder, self.snapshot.manifest, grace_s=0.0)
        return sorted({*dropped, *removed})

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Change the settings of lexical search; None: remove postings and word lists."""
        old, before = self.snapshot.manifest, self.snapshot.manifest.lexical
        stale = before and (settings is None or settings.terms != before.terms)
        lexical = [file.name for s in old.segments if s.lexical for file in s.lexical.files]
        with self._rewriting() as work:
            kept = old.without(lexical if stale else ())
            work.commit(with_lexical(work, kept.with_lexical(settings)))

    def backup_to(self, target: str | Path) -> None:
        """Copy this state to another folder, by hard links if possible."""
        backup.backup_to(self.snapshot, Path(target))

    def rewrite(self, change: Callable[[Transaction], Manifest]) -> None:
        """Commit the state that ``change`` returns, then remove files that only the old state used.

        ``change`` writes files in the transaction; to commit nothing, it returns the old state.
        """
        with self._rewriting() as work:
            new = change(work)
            if new != work.old:
                work.commit(new)

    def _compact(
        self, cursor: BuildCursor | None, memory_bytes: int | None, retrain: bool = False
    ) -> None:
        def compacted(work: Transaction) -> Manifest:
            groups = merge_policy.groups_for_compaction(self.snapshot)
            new = compaction.merge_segments(work, self.snapshot, groups) if groups else work.old
            new = compaction.with_ann(
                work,
                self.snapshot,
                new,
                memory_bytes=memory_bytes,
                retrain=retrain,
                n_shards=self._n_shards,
            )
            new = with_lexical(work, new)
            return dataclasses.replace(new, build=cursor)

        self.rewrite(compacted)

    @contextlib.contextmanager
    def _rewriting(self) -> Iterator[Transaction]:
        """Run a transaction, then remove the files that only the old state used."""
        with self._transaction() as work:
            yield work
        needed = {file.name for file in self.snapshot.manifest.files}
        work.remove(f.name for f in work.old.files if f.name not in needed)

    def _with_batch(
        self,
        work: Transaction,
        new: Manifest,
        batch: PassageBatch,
        rows: NDArray[np.int64] | None,
        *,
        extends: bool,
    ) -> Manifest:
        at = new.next_row if rows is None else rows
        part, table = make_part(batch, at, new.settings, new.columns)
        replaced = self.snapshot.lookup([document.doc_id for document in batch.documents])
        new = self._with_dead(work, new, replaced[replaced >= 0])
        older = self.snapshot if extends else None
        segment = compaction.written(work, new, part, table, older)
        kept = new.segments[:-1] if extends else new.segments
        return dataclasses.replace(new, segments=(*kept, segment), next_row=segment.row_end)

    def _with_dead(
        self, work: Transaction, new: Manifest, first_rows: NDArray[np.int64]
    ) -> Manifest:
        """Return a state in which documents are dead, given the rows of their first passages."""
        first_rows = np.unique(first_rows)
        if len(first_rows) == 0:
            return new
        tombstone = work.write_tombstones(self.snapshot.rows_of(first_rows), len(first_rows))
        return dataclasses.replace(new, tombstones=(*new.tombstones, tombstone))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Run a transaction, then open and publish the state that it committed, if any."""
        with transaction(self._held_folder, self.snapshot.manifest) as work:
            yield work
        if work.committed:
            try:
                self.snapshot = Snapshot(work.folder, work.committed, self.snapshot)
            except FileNotFoundError as error:
                raise IndexStoreError(
                    f"{self.path}: the commit is done, but another program has removed "
                    f"{error.filename} since. Restore this file, or the whole index, from a backup."
                ) from error
            self._publish(self.snapshot)

    def _classify_one(self, doc_id: str, content: int, stored: int | None, mode: str) -> Outcome:
        known, waiting = self._pending.get(doc_id, (stored, 0))
        if known == content:
            return Outcome.DUPLICATE
        if known is not None and mode == "add":
            return Outcome.CONFLICT
        self._pending[doc_id] = content, waiting + 1
        return Outcome.NEW if known is None else Outcome.REPLACE

    def _forget(self, committed: Sequence[Document]) -> None:
        """Drop ids of committed documents from `_pending`, unless newer contents are pending."""
        with self._guard:
            for document in committed:
                content, waiting = self._pending.pop(document.doc_id, (0, 0))
                if waiting > 1:
                    self._pending[document.doc_id] = content, waiting - 1
