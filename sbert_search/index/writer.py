"""Changing an index: classify documents, commit passages, delete, compact, repair."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.errors import IndexStoreError
from sbert_search.index.part_writer import BlankDocuments, PartWriter
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.shards.held import HeldShards
from sbert_search.index.shards.manifest import shards_of
from sbert_search.index.shards.opening import joined, naming_shard
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import ids
from sbert_search.index.storage.manifest import BuildCursor, ColumnType, Manifest
from sbert_search.index.storage.rows import StoredPassage
from sbert_search.index.storage.transaction import HeldFolder, Transaction
from sbert_search.index.upkeep import backup
from sbert_search.records import Document, Where

if TYPE_CHECKING:
    from sbert_search.embed.pipeline import EmbeddedBatch

T = TypeVar("T")

_READ_DOCS = 64  # stored documents that are read together, to be compared with new ones


class Outcome(enum.Enum):
    """What adding a document would do."""

    NEW = "new"  # the index has no document with this id
    REPLACE = "replace"  # the index has the id with other content, which is replaced
    DUPLICATE = "duplicate"  # the index has the id with the same content: nothing to do
    CONFLICT = "conflict"  # the index has the id with other content, which must not be replaced


class Classifier:
    """Says what adding documents would do, given those of an index and earlier accepted ones.

    `classify` may run in another thread than `forget`.
    """

    def __init__(self, state: Callable[[], Snapshot]) -> None:
        self._state = state  # returns the newest state
        # For each id of accepted documents that are not yet committed: the hash of the newest
        # content, and the number of such documents with this id.
        self._pending: dict[str, tuple[int, int]] = {}
        self._guard = threading.Lock()  # guards _pending, which two threads change

    def classify(
        self,
        documents: Sequence[Document],
        mode: Literal["add", "upsert"] = "add",
        vectors: NDArray[np.float32] | None = None,
    ) -> list[Outcome]:
        """Return the outcome of each document; see `IndexWriter.classify`."""
        contents = ids.hash_contents(documents, vectors).tolist()
        with self._guard:
            rows, known = self._state().find([document.doc_id for document in documents])
            each = zip(documents, contents, rows.tolist(), known.tolist(), strict=True)
            return [
                self._classify_one(document.doc_id, content, stored if row >= 0 else None, mode)
                for document, content, row, stored in each
            ]

    def forget(self, committed: Sequence[Document]) -> None:
        """Drop the ids of committed documents, unless newer contents of them are accepted."""
        with self._guard:
            for document in committed:
                content, waiting = self._pending.pop(document.doc_id, (0, 0))
                if waiting > 1:
                    self._pending[document.doc_id] = content, waiting - 1

    def _classify_one(self, doc_id: str, content: int, stored: int | None, mode: str) -> Outcome:
        known, waiting = self._pending.get(doc_id, (stored, 0))
        if known == content:
            return Outcome.DUPLICATE
        if known is not None and mode == "add":
            return Outcome.CONFLICT
        self._pending[doc_id] = content, waiting + 1
        return Outcome.NEW if known is None else Outcome.REPLACE


def require_fit(state: Snapshot, columns: Mapping[str, ColumnType], origin: str) -> None:
    """Refuse types of metadata columns, which ``origin`` has, that stored values do not fit."""
    for name, kind in state.columns.items():
        if kind != columns[name] and not state.widens(name):
            held, fails = ("integers", "round") if kind == "int64" else ("texts", "refuse")
            raise IndexStoreError(
                f"The metadata column {name!r} of {state.path} holds {held} that {columns[name]}, "
                f"its type in {origin}, would {fails}; rename the column in the source."
            )


class IndexWriter:
    """Changes an index while it holds the lock of the index; made by `IndexStore.writer`.

    `classify` may run in another thread than `commit`. ``publish`` is called with the new state,
    which is then in `snapshot`, after each commit.

    A method of a sharded index first writes durable files in the shards. Then one commit makes the
    new states of all shards current. Only `compact` and `finish_build` make a commit for each
    shard.

    After an error of a method the index is as before, unless the message says that the commit is
    done. After `CommitUnknown` the old or the new state holds; reopen the index to see which one.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        held: HeldFolder | HeldShards,
        publish: Callable[[Snapshot], None],
    ) -> None:
        self._joined, self._publish = snapshot, publish
        self._shards = held if isinstance(held, HeldShards) else None
        published = (lambda _: None) if self._shards else publish
        self._parts = [
            PartWriter(part, folder, published, snapshot.n_shards)
            for part, folder in zip(snapshot.parts, held.parts, strict=True)
        ]
        self._classifier = Classifier(lambda: self.snapshot)
        self._columns = dict(snapshot.columns)

    @property
    def snapshot(self) -> Snapshot:
        """The newest state that this writer opened or committed."""
        if self._shards is None:
            return self._parts[0].snapshot
        if self._joined.shards != self._shards.manifest:
            states = [part.snapshot for part in self._parts]
            self._joined = joined(self._joined.folder, self._shards.manifest, states)
        return self._joined

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self.snapshot.path

    def add_columns(self, columns: Mapping[str, ColumnType]) -> None:
        """Add metadata columns from the next commit on; stored values must fit their types."""
        merged = columns_of.merge(self._columns, columns)
        require_fit(self.snapshot, merged, "the source")
        self._columns = merged

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
        return self._classifier.classify(documents, mode, vectors)

    def commit(
        self,
        batch: EmbeddedBatch[object] | None,
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
                earlier rows of the block.
            ends_block: Whether the batch has the last rows of its block; segments are merged only
                after such a batch.
            rows: The row of each passage, int64 (n_rows,), ascending, above all rows in use, and
                consecutive for the passages of a document; None: the next unused rows.
        """
        documents = batch.documents if batch is not None else ()
        parts = self._routed(batch, rows) if batch is not None and documents else {}
        # If the first commit of a block has no document for a shard, the shard's last segment
        # belongs to an earlier block, and later commits of the block must not extend that segment.
        # They do not if unused rows follow it.
        leaves_row = self._shards and cursor and starts_block and documents
        next_row = self.snapshot.manifest.next_row + 1 if leaves_row else 0
        forget = partial(self._classifier.forget, documents)
        with self.together() as writers:
            for number, writer in enumerate(writers):
                part, part_rows = parts.get(number, (None, None))
                writer.commit(
                    part,
                    part_rows,
                    self._columns,
                    cursor=cursor,
                    starts_block=starts_block,
                    ends_block=ends_block,
                    next_row=next_row,
                    committed=None if self._shards else forget,
                )
        if self._shards:
            forget()

    def unchanged(
        self, documents: Sequence[Document], keeps: Callable[[Sequence[StoredPassage]], bool]
    ) -> EmbeddedBatch[NDArray[np.int64]] | None:
        """Find the documents whose text the index holds under their ids, with its vectors; or None.

        ``keeps`` decides by the stored passages of a document whether they can stay. The payload is
        the index of each document in ``documents``. Large files are not hashed before: a commit of
        few documents must not read the whole index.
        """
        from sbert_search.embed.pipeline import EmbeddedBatch  # not for other changes

        state, places, found = self.snapshot, list[int](), list[StoredPassage]()
        firsts = state.lookup([document.doc_id for document in documents])
        known = np.flatnonzero(firsts >= 0)
        for start in range(0, len(known), _READ_DOCS):
            block = known[start : start + _READ_DOCS]
            rows = state.rows_of(np.unique(firsts[block]))
            passages = {
                row: list(group) for row, group in groupby(state.fetch(rows), attrgetter("doc_row"))
            }
            for place in block.tolist():
                stored = passages[int(firsts[place])]
                if stored[0].document.full_text == documents[place].full_text and keeps(stored):
                    places.append(place)
                    found += stored
        if not places:
            return None
        first = np.array([passage.chunk == 0 for passage in found])
        rows = np.array([passage.row for passage in found])
        return EmbeddedBatch(
            documents=[documents[place] for place in places],
            doc_of=np.cumsum(first) - 1,
            chunk=np.array([passage.chunk for passage in found], np.int32),
            char_start=np.array([passage.char_start for passage in found]),
            char_end=np.array([passage.char_end for passage in found]),
            n_tokens=np.array([passage.n_tokens for passage in found], np.int32),
            lost_tokens=np.array([passage.lost_tokens for passage in found], np.int32),
            vectors=state.vectors(rows),
            stored_row=rows,
            payload=np.array(places),
            held_bytes=sum(documents[place].held_bytes for place in places),
        )

    def commit_blank(self, documents: BlankDocuments, *, cursor: BuildCursor) -> None:
        """Add new documents without text as one segment, in one commit; none: only the cursor."""
        if self._shards:
            raise IndexStoreError(
                f"{self.path} is a sharded index, which takes vectors with "
                "Index.build(vectors=...) or add(vectors=...), and not with from_vectors."
            )
        self._parts[0].commit_blank(documents, cursor)

    def delete(self, doc_ids: Sequence[str]) -> list[str]:
        """Delete documents by id; return the ids that the index does not hold."""
        rows = self.snapshot.lookup(doc_ids)
        self.delete_documents(rows[rows >= 0])
        return [doc_id for doc_id, row in zip(doc_ids, rows, strict=True) if row < 0]

    def delete_where(self, where: Where) -> int:
        """Delete the documents that match an SQL condition; return their number."""
        mask = self.snapshot.filter_mask(where)
        segments = zip(self.snapshot.segments, mask.parts, strict=True)
        first_rows = [segment.rows[part & (segment.chunks == 0)] for segment, part in segments]
        self.delete_documents(np.concatenate([np.empty(0, np.int64), *first_rows]))
        return mask.n_docs

    def delete_documents(self, first_rows: NDArray[np.int64]) -> None:
        """Delete documents, given the rows of their first passages, int64 (n_docs,)."""
        if len(first_rows):
            with self.together() as parts:
                for part in parts:
                    held = part.snapshot.holds(first_rows) if self._shards else slice(None)
                    part.delete_documents(first_rows[held])

    def start_over(self, empty: Manifest) -> None:
        """Commit a state without documents, with which another build of the index starts."""
        self._each(lambda part: part.start_over(empty))
        self._columns = dict(empty.columns)

    def settle(self) -> bool:
        """Merge segments and tombstones after an update; return whether anything was rewritten."""
        return any(self._each(lambda part: part.settle()))

    def compact(self, *, retrain: bool = False) -> None:
        """Merge segments, drop dead rows, and build missing FAISS files and postings.

        ``retrain``: train FAISS again and rebuild all FAISS files. Each shard gets its own commit.
        """
        self._compact(retrain=retrain)

    def finish_build(self) -> None:
        """Compact the index and mark its build as finished."""
        self._compact(finishes=not self._shards)
        build = self.snapshot.manifest.build
        if self._shards and build:
            self.commit(None, cursor=dataclasses.replace(build, finished=True))

    def repair(self) -> list[str]:
        """Remove damaged derived files and unreferenced files, and build missing derived files.

        Damaged files of documents, vectors and ids stay; they must be restored from a backup.
        Returns the names of the removed files, such as ``ann/000003.faiss``, or
        ``shard-0001/ann/000003.faiss`` in a sharded index.
        """
        removed = self._each(lambda part: part.repair())
        for names, part in zip(removed, self._parts, strict=True):
            names.update(part.remove_unreferenced())
        folders = self.snapshot.part_folders
        return sorted(
            f"{folder}/{name}" if folder else name
            for folder, names in zip(folders, removed, strict=True)
            for name in names
        )

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Change the settings of lexical search; None: remove postings and word lists."""
        self._each(lambda part: part.set_lexical(settings))

    def backup_to(self, target: str | Path) -> None:
        """Copy this state to another folder, by hard links if possible."""
        backup.backup_to(self.snapshot, Path(target))

    def rewrite(self, change: Callable[[Transaction], Manifest]) -> None:
        """Commit the state that ``change`` returns for each part; see `PartWriter.rewrite`."""
        self._each(lambda part: part.rewrite(change))

    @contextlib.contextmanager
    def rewriting(self) -> Iterator[Sequence[Transaction]]:
        """Run a transaction in each part; then remove the files that only the old states used."""
        with self.together() as parts, contextlib.ExitStack() as stack:
            yield [stack.enter_context(part.rewriting()) for part in parts]

    @contextlib.contextmanager
    def together(self) -> Iterator[Sequence[PartWriter]]:
        """Yield the writers of the parts; the commits of shards become current at once, or none.

        Without shards, each commit is current at once.
        """
        if self._shards is None:
            yield self._parts
            return
        before = self.snapshot
        with self._shards.together(self._parts):
            yield self._parts
        if self.snapshot is not before:
            self._publish(self.snapshot)

    def _each(self, change: Callable[[PartWriter], T]) -> list[T]:
        """Change each part and list the results; an error of damage names the shard's folder."""
        results = []
        with self.together() as parts:
            for part, folder in zip(parts, self.snapshot.part_folders, strict=True):
                with naming_shard(folder):
                    results.append(change(part))
        return results

    def _compact(self, *, retrain: bool = False, finishes: bool = False) -> None:
        for part, folder in zip(self._parts, self.snapshot.part_folders, strict=True):
            with self.together(), naming_shard(folder):
                part.compact(retrain=retrain, finishes=finishes)

    def _routed(
        self, batch: EmbeddedBatch[object], rows: NDArray[np.int64] | None
    ) -> dict[int, tuple[EmbeddedBatch[object], NDArray[np.int64] | None]]:
        """Split a batch and its rows by shard; None: the passages get the next unused rows."""
        if not self._shards:
            return {0: (batch, rows)}
        if rows is None:
            first = self.snapshot.manifest.next_row
            rows = np.arange(first, first + len(batch.doc_of))
        shards = shards_of([document.doc_id for document in batch.documents], len(self._parts))
        parts: dict[int, tuple[EmbeddedBatch[object], NDArray[np.int64] | None]] = {}
        for number in np.unique(shards).tolist():
            docs = np.flatnonzero(shards == number)
            at = np.flatnonzero(shards[np.asarray(batch.doc_of)] == number)
            parts[number] = batch.take(docs, at), rows[at]
        return parts
