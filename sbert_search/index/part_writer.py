"""Changing one folder of an index: commit passages, delete, compact, repair."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.threads import prefetch
from sbert_search.errors import IndexStoreError
from sbert_search.index.lexical.postings import Postings, with_lexical, write_lexical
from sbert_search.index.lexical.vocabulary import WordList, lists_words
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import ids
from sbert_search.index.storage.manifest import BuildCursor, ColumnType, Manifest, VectorSettings
from sbert_search.index.storage.segment_writer import (
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
from sbert_search.index.upkeep import compaction, merge_policy
from sbert_search.index.upkeep.check import damaged_derived_files

if TYPE_CHECKING:
    from sbert_search.embed.pipeline import EmbeddedBatch


def _bytes_of(batch: EmbeddedBatch[object]) -> int:
    """Estimate the bytes of a segment of a batch."""
    return batch.vectors.nbytes + 2 * sum(len(document.full_text) for document in batch.documents)


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


class PartWriter:
    """Changes an index without shards, or one shard; made by `IndexWriter`.

    ``publish`` is called with the new state, which is then in `snapshot`, after each commit.
    ``n_shards`` is the number of shards of the index.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        held_folder: HeldFolder,
        publish: Callable[[Snapshot], None],
        n_shards: int,
    ) -> None:
        self.snapshot, self._n_shards = snapshot, n_shards
        self._held_folder, self._publish = held_folder, publish

    def commit(
        self,
        batch: EmbeddedBatch[object] | None,
        rows: NDArray[np.int64] | None,
        columns: Mapping[str, ColumnType],
        *,
        cursor: BuildCursor | None,
        starts_block: bool,
        ends_block: bool,
        next_row: int = 0,
        committed: Callable[[], None] | None = None,
    ) -> None:
        """Add passages; arguments as for `IndexWriter.commit`.

        ``columns`` are those of the index from now on. ``next_row`` is the least value of the
        lowest unused row. ``committed`` is called before segments are merged, which may fail.
        """
        if batch is None and cursor is None:
            return
        old = self.snapshot.manifest
        of_block = old.segments and old.segments[-1].row_end == old.next_row
        extends = bool(cursor and of_block and not starts_block)
        with self.rewriting() if extends else self._transaction() as work:
            new = dataclasses.replace(
                old,
                columns=columns,
                build=cursor or old.build,
                next_row=max(old.next_row, next_row),
            )
            if batch:
                is_update = cursor is None
                with work.packed(_bytes_of(batch)) if is_update else contextlib.nullcontext():
                    new = self._with_batch(work, new, batch, rows, extends=extends)
            work.commit(new)
        if committed:
            committed()
        if ends_block and (groups := merge_policy.groups_after_commit(self.snapshot)):
            with self.rewriting() as work:
                work.commit(compaction.merge_segments(work, self.snapshot, groups))

    def commit_blank(self, documents: BlankDocuments, cursor: BuildCursor) -> None:
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
                        work,
                        parts,
                        table=ids.make_table(documents.id_hashes, rows, documents.contents),
                        n_rows=n_rows,
                        manifest=old,
                    )
                if old.lexical:
                    postings = [(Postings.of_blank(n_rows), None)]
                    words = [WordList.of(Counter())] if lists_words(n_rows) else None
                    lexical = write_lexical(work, postings, words)
                    segment = segment.with_lexical(lexical)
                segments = (*old.segments, segment)
                new = dataclasses.replace(new, segments=segments, next_row=first_row + n_rows)
            work.commit(new)

    def delete_documents(self, first_rows: NDArray[np.int64]) -> None:
        """Delete documents, given the rows of their first passages."""
        if len(first_rows):
            with self._transaction() as work:
                work.commit(self._with_dead(work, work.old, first_rows))

    def start_over(self, empty: Manifest) -> None:
        """Commit a state without documents."""
        with self._transaction() as work:
            work.commit(empty)

    def settle(self) -> bool:
        """Merge segments and tombstones after an update; return whether anything was rewritten."""
        groups = merge_policy.groups_after_update(self.snapshot, self._n_shards)
        lacks_ann = merge_policy.update_lacks_ann(self.snapshot.manifest, self._n_shards)
        many_tombstones = len(self.snapshot.manifest.tombstones) > merge_policy.MAX_TOMBSTONES
        if not (groups or lacks_ann or many_tombstones):
            return False
        with self.rewriting() as work:
            new = compaction.merge_segments(work, self.snapshot, groups)
            if groups or lacks_ann:
                new = self.with_ann(work, new)
            work.commit(with_lexical(work, new, words=False))
        return True

    def compact(self, *, retrain: bool = False, finishes: bool = False) -> None:
        """Merge segments, drop dead rows, and build missing FAISS files and postings.

        ``finishes``: mark the build as finished in the same commit.
        """

        def compacted(work: Transaction) -> Manifest:
            groups = merge_policy.groups_for_compaction(self.snapshot)
            new = compaction.merge_segments(work, self.snapshot, groups) if groups else work.old
            new = with_lexical(work, self.with_ann(work, new, retrain=retrain))
            build = new.build
            if build and finishes:
                build = dataclasses.replace(build, finished=True)
            return dataclasses.replace(new, build=build)

        self.rewrite(compacted)

    def with_ann(
        self,
        work: Transaction,
        new: Manifest,
        *,
        retrain: bool = False,
    ) -> Manifest:
        """Return a state with the FAISS files that it lacks, as `compaction.with_ann` does."""
        return compaction.with_ann(
            work,
            self.snapshot,
            new,
            retrain=retrain,
            n_shards=self._n_shards,
        )

    def repair(self) -> set[str]:
        """Make damaged and missing derived files; return the names of damaged ones."""
        old = self.snapshot.manifest
        dropped = damaged_derived_files(self._held_folder.folder, old)
        with self._transaction() as work:
            new = with_lexical(work, self.with_ann(work, old.without(dropped)))
            if new != old:
                work.commit(new)
        return dropped

    def remove_unreferenced(self) -> list[str]:
        """Remove all unreferenced files; return their names."""
        return remove_unreferenced(self._held_folder, self.snapshot.manifest, grace_s=0.0)

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Change the settings of lexical search; None: remove postings and word lists."""
        old, before = self.snapshot.manifest, self.snapshot.manifest.lexical
        stale = before and (settings is None or settings.terms != before.terms)
        lexical = [file.name for s in old.segments if s.lexical for file in s.lexical.files]
        with self.rewriting() as work:
            kept = old.without(lexical if stale else ())
            work.commit(with_lexical(work, kept.with_lexical(settings)))

    def rewrite(self, change: Callable[[Transaction], Manifest]) -> None:
        """Commit the state that ``change`` returns, then remove files that only the old state used.

        ``change`` writes files in the transaction; to commit nothing, it returns the old state.
        """
        with self.rewriting() as work:
            new = change(work)
            if new != work.old:
                work.commit(new)

    @contextlib.contextmanager
    def rewriting(self) -> Iterator[Transaction]:
        """Run a transaction, then remove the files that only the old state used."""
        with self._transaction() as work:
            yield work
        needed = {file.on_disk for file in self.snapshot.manifest.files}
        work.remove(sorted({file.on_disk for file in work.old.files} - needed))

    def _with_batch(
        self,
        work: Transaction,
        new: Manifest,
        batch: EmbeddedBatch[object],
        rows: NDArray[np.int64] | None,
        *,
        extends: bool,
    ) -> Manifest:
        at = new.next_row if rows is None else rows
        part, table = make_part(batch, at, new.settings, new.columns)
        if not extends and len(part.vectors) == len(batch.stored_row):  # no passage was left out
            others = compaction.other_vectors_at(work, self.snapshot, batch.stored_row)
            part = dataclasses.replace(part, others=others)
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
                folder = self._held_folder.folder
                self.snapshot = Snapshot(folder, work.committed, self.snapshot)
            except FileNotFoundError as error:
                raise IndexStoreError(
                    f"{self.snapshot.path}: the commit is done, but another program has removed "
                    f"{error.filename} since. Restore this file, or the whole index, from a backup."
                ) from error
            self._publish(self.snapshot)
