"""Changing an index: classify documents, commit passages, delete."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import IndexStoreError
from sbert_search.index.lexical.posting_files import texts_of, with_lexical, write_lexical
from sbert_search.index.lexical.postings import count_terms
from sbert_search.index.lexical_settings import LexicalSettings
from sbert_search.index.maintenance import backup, compaction, merge_policy
from sbert_search.index.maintenance.check import damaged_derived_files
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import ids
from sbert_search.index.storage.holding import Holding
from sbert_search.index.storage.manifest import BuildCursor, ColumnType, Manifest, StoreSettings
from sbert_search.index.storage.segment_rows import PassageBatch, make_part
from sbert_search.index.storage.segment_writer import write_segment
from sbert_search.index.storage.transaction import Transaction, remove_unreferenced, transaction
from sbert_search.records import Document


class Outcome(enum.Enum):
    """What a document would be to an index."""

    NEW = "new"  # its id is not there
    REPLACE = "replace"  # its id is there with other content, and may be replaced
    DUPLICATE = "duplicate"  # its id is there with the same content: nothing to do
    CONFLICT = "conflict"  # its id is there with other content, and must not be replaced


class IndexWriter:
    """The one writer of an index; made by `IndexStore.writer`.

    `classify` may run in another thread than `commit`.

    Args:
        snapshot: The newest state.
        holding: The right to write.
        publish: Called with the state that each commit leaves.

    Attributes:
        snapshot: The state that the last commit left.
    """

    def __init__(
        self, snapshot: Snapshot, holding: Holding, publish: Callable[[Snapshot], None]
    ) -> None:
        self.snapshot = snapshot
        self._holding, self._publish = holding, publish
        # Of each id with classified, uncommitted documents: the newest content hash, how many.
        self._pending: dict[str, tuple[int, int]] = {}
        self._columns = dict(snapshot.columns)
        self._guard = threading.Lock()

    @property
    def path(self) -> Path:
        """The index."""
        return self.snapshot.path

    def add_columns(self, columns: Mapping[str, ColumnType]) -> None:
        """Join the metadata columns of a source with those of the index, from the next commit.

        Raises:
            IndexStoreError: A column has another type in the index, or holds integers there that
                the floats of the source would round.
        """
        merged = columns_of.merge(self._columns, columns)
        for name, kind in self._columns.items():
            if kind != merged[name] and not self.snapshot.widens(name):
                raise IndexStoreError(
                    f"The metadata column {name!r} holds integers in the index that float64, its "
                    "type in the source, would round; rename it in the source."
                )
        self._columns = merged

    def classify(
        self, documents: Sequence[Document], mode: Literal["add", "upsert"] = "add"
    ) -> list[Outcome]:
        """Say what each document would be, before it costs an embedding.

        Sees the committed state and every document that an earlier call let pass; documents that
        pass (NEW, REPLACE) must be committed in the order they were classified, each once.

        Args:
            documents: In the order of the source.
            mode: Whether other content under a known id is a conflict or a replacement.
        """
        with self._guard:
            rows, contents = self.snapshot.find([document.doc_id for document in documents])
            return [
                self._classify_one(document, int(content) if row >= 0 else None, mode)
                for document, row, content in zip(documents, rows, contents, strict=True)
            ]

    def commit(self, batch: PassageBatch | None, *, cursor: BuildCursor | None = None) -> None:
        """Make passages durable and findable; documents of the same ids are replaced.

        Args:
            batch: What to add; None to move the cursor alone.
            cursor: How far a build has come with it.

        Raises:
            IndexStoreError: Passages that cannot be stored, or a disk that failed; the index is
                as before.
            CommitUnknown: The disk failed at the last step; reopen the index.
        """
        batch = batch if batch is not None and len(batch.documents) else None
        old = self.snapshot.manifest
        with self._transaction() as work:
            new = dataclasses.replace(old, columns=self._columns, build=cursor or old.build)
            new = self._with_batch(work, new, batch) if batch else new
            work.commit(new)
        self._forget(batch.documents if batch else ())
        if groups := merge_policy.groups_after_commit(self.snapshot):
            with self._rewriting() as work:
                work.commit(compaction.rewritten(work, self.snapshot, groups))

    def delete(self, doc_ids: Sequence[str]) -> list[str]:
        """Delete documents by id.

        Returns:
            The ids that the index did not hold.

        Raises:
            IndexStoreError: The disk failed; nothing is deleted.
            CommitUnknown: The disk failed at the last step; reopen the index.
        """
        rows = self.snapshot.lookup(doc_ids)
        self._delete_documents(rows[rows >= 0])
        return [doc_id for doc_id, row in zip(doc_ids, rows, strict=True) if row < 0]

    def delete_where(self, where: str) -> int:
        """Delete the documents that match an SQL condition over their metadata.

        Returns:
            How many there were.

        Raises:
            QueryError: A condition that cannot be used.
            IndexStoreError, CommitUnknown: As `delete`.
        """
        mask = self.snapshot.filter_mask(where)
        segments = zip(self.snapshot.segments, mask.parts, strict=True)
        docs = [segment.rows[part & (segment.chunks == 0)] for segment, part in segments]
        self._delete_documents(np.concatenate([np.empty(0, np.int64), *docs]))
        return mask.n_docs

    def _delete_documents(self, docs: NDArray[np.int64]) -> None:
        """Delete documents, given the rows of their first passages."""
        if len(docs):
            with self._transaction() as work:
                work.commit(self._with_dead(work, work.old, docs))

    def start_over(
        self, settings: StoreSettings, columns: Mapping[str, ColumnType], build: BuildCursor
    ) -> None:
        """Empty the index for another build, in one commit.

        Raises:
            IndexStoreError: The disk failed; the index is as before.
            CommitUnknown: The disk failed at the last step; reopen the index.
        """
        with self._transaction() as work:
            work.commit(Manifest(settings=settings, columns=dict(columns), build=build))
        self._columns = dict(columns)

    def settle(self, *, memory_bytes: int | None = None) -> bool:
        """End an update: rewrite what it has left beyond the limits of `upkeep`, if anything.

        Args:
            memory_bytes: What FAISS may take; None: no limit.

        Returns:
            Whether anything was rewritten.

        Raises:
            ConfigError: A FAISS index would not fit the budget; the index is as before.
            CorruptIndex: A file is damaged; the index is as before.
            IndexStoreError: The disk failed; the index is as before.
            CommitUnknown: The disk failed at the last step; reopen the index.
        """
        groups = merge_policy.groups_after_update(self.snapshot)
        if not groups and len(self.snapshot.manifest.tombstones) <= merge_policy.MAX_TOMBSTONES:
            return False
        with self._rewriting() as work:
            new = compaction.rewritten(work, self.snapshot, groups)
            if groups:
                new = compaction.with_ann(work, self.snapshot, new, memory_bytes=memory_bytes)
            work.commit(with_lexical(work, new))
        return True

    def compact(self, *, memory_bytes: int | None = None, retrain: bool = False) -> None:
        """Merge segments, drop dead rows, make the FAISS files that are missing.

        Args:
            memory_bytes: What FAISS may take; None: no limit.
            retrain: Train FAISS anew and make all its files again.

        Raises:
            ConfigError: A FAISS index would not fit the budget; the index is as before.
            CorruptIndex: A file is damaged; the index is as before.
            IndexStoreError: The disk failed; the index is as before.
            CommitUnknown: The disk failed at the last step; reopen the index.
        """
        self._compact(self.snapshot.manifest.build, memory_bytes, retrain)

    def finish_build(self, *, memory_bytes: int | None = None) -> None:
        """End a build: compact, and mark its cursor finished; raises as `compact`."""
        cursor = self.snapshot.manifest.build
        finished = dataclasses.replace(cursor, finished=True) if cursor else None
        self._compact(finished, memory_bytes)

    def repair(self) -> list[str]:
        """Drop damaged derived files and files that nobody names; make missing derived ones again.

        Documents, vectors and ids are never touched: what is damaged there comes from a snapshot.

        Returns:
            Names of the files dropped.
        """
        old = self.snapshot.manifest
        dropped = damaged_derived_files(self._holding.folder, old)
        with self._transaction() as work:
            new = compaction.with_ann(work, self.snapshot, old.without(dropped))
            new = with_lexical(work, new)
            if new != old:
                work.commit(new)
        removed = remove_unreferenced(self._holding, self.snapshot.manifest, grace_s=0.0)
        return sorted({*dropped, *removed})

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Change what a word is and how words score; None: keep no lexical data.

        Postings are made again where they depend on what changed.

        Raises:
            CorruptIndex: Documents cannot be read; the index is as before.
            IndexStoreError: The disk failed; the index is as before.
            CommitUnknown: The disk failed at the last step; reopen the index.
        """
        old, before = self.snapshot.manifest, self.snapshot.settings.lexical
        stale = before and (settings is None or settings.terms != before.terms)
        lexical = [file.name for s in old.segments if s.lexical for file in s.lexical.files]
        with self._rewriting() as work:
            kept = old.without(lexical if stale else ())
            kept = dataclasses.replace(
                kept, settings=dataclasses.replace(old.settings, lexical=settings)
            )
            work.commit(with_lexical(work, kept))

    def backup_to(self, target: str | Path) -> None:
        """Make another folder an index in this state, by hard links; see `backup.backup_to`."""
        folder, manifest = self._holding.folder, self.snapshot.manifest
        backup.backup_to(folder, manifest, Path(target), backup.opened_files(folder, manifest))

    def rewrite(self, change: Callable[[Transaction], Manifest]) -> None:
        """Commit what a function makes of the index, then drop the files that it left behind.

        Args:
            change: Writes files in the transaction and returns the new state.

        Raises:
            IndexStoreError: The disk failed; the index is as before.
            CommitUnknown: The disk failed at the last step; reopen the index.
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
            new = compaction.rewritten(work, self.snapshot, groups) if groups else work.old
            new = compaction.with_ann(
                work, self.snapshot, new, memory_bytes=memory_bytes, retrain=retrain
            )
            new = with_lexical(work, new)
            return dataclasses.replace(new, build=cursor)

        self.rewrite(compacted)

    @contextlib.contextmanager
    def _rewriting(self) -> Iterator[Transaction]:
        """Work on a transaction, then remove the files that it made superfluous."""
        with self._transaction() as work:
            yield work
        needed = {file.name for file in self.snapshot.manifest.files}
        work.remove(f.name for f in work.old.files if f.name not in needed)

    def _with_batch(self, work: Transaction, new: Manifest, batch: PassageBatch) -> Manifest:
        part, table = make_part(batch, new.next_row, new.settings, new.columns)
        n_rows = len(part.vectors)
        replaced = self.snapshot.lookup([document.doc_id for document in batch.documents])
        new = self._with_dead(work, new, replaced[replaced >= 0])
        segment = write_segment(
            work.folder,
            work.new_number(),
            [part],
            table=table,
            n_rows=n_rows,
            settings=new.settings,
            columns=new.columns,
        )
        if new.settings.lexical:
            postings = count_terms(texts_of(part.docs), new.settings.lexical)
            lexical = write_lexical(work.folder, work.new_number(), [(postings, None)])
            segment = dataclasses.replace(segment, lexical=lexical)
        return dataclasses.replace(
            new, segments=(*new.segments, segment), next_row=new.next_row + n_rows
        )

    def _with_dead(self, work: Transaction, new: Manifest, docs: NDArray[np.int64]) -> Manifest:
        """Let documents die, given the rows of their first passages."""
        docs = np.unique(docs)
        if len(docs) == 0:
            return new
        tombstone = work.write_tombstones(self.snapshot.rows_of(docs), len(docs))
        return dataclasses.replace(new, tombstones=(*new.tombstones, tombstone))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Work on a transaction, then publish the state that it committed, if it did."""
        with transaction(self._holding, self.snapshot.manifest) as work:
            yield work
        if work.committed:
            try:
                self.snapshot = Snapshot(work.folder, work.committed, self.snapshot)
            except FileNotFoundError as error:
                raise IndexStoreError(
                    f"{self.path}: the commit is done, but {error.filename} was removed from "
                    "outside since. Restore it, or the whole index from a snapshot."
                ) from error
            self._publish(self.snapshot)

    def _classify_one(self, document: Document, stored: int | None, mode: str) -> Outcome:
        known, waiting = self._pending.get(document.doc_id, (stored, 0))
        content = ids.hash_content(document)
        if known == content:
            return Outcome.DUPLICATE
        if known is not None and mode == "add":
            return Outcome.CONFLICT
        self._pending[document.doc_id] = content, waiting + 1
        return Outcome.NEW if known is None else Outcome.REPLACE

    def _forget(self, committed: Sequence[Document]) -> None:
        """Leave it to the snapshot to know documents, except ids of which newer ones wait."""
        with self._guard:
            for document in committed:
                content, waiting = self._pending.pop(document.doc_id, (0, 0))
                if waiting > 1:
                    self._pending[document.doc_id] = content, waiting - 1
