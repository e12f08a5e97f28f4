"""The parts of `Index` that read one state of it, and that describe, check and compact it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sbert_search.config import from_mapping
from sbert_search.errors import UnfinishedBuild
from sbert_search.index.documents import (
    Page,
    get_document,
    id_text,
    is_id,
    iter_documents,
    read_page,
    sample_documents,
)
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.store import IndexStore
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Document

if TYPE_CHECKING:
    from sbert_search.index.building.read_settings import ReadSettings
    from sbert_search.index.settings import LexicalSettings
    from sbert_search.index.upkeep.check import CheckReport
    from sbert_search.index.upkeep.info import DriftReport, IndexInfo


class ReadableIndex:
    """Reads one immutable state of an index: the result of one commit.

    `refresh` moves the object to the newest state.
    """

    def __init__(self, store: IndexStore) -> None:
        self.store = store

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self.store.path

    @property
    def state(self) -> Snapshot:
        """The state that this object reads."""
        return self.store.snapshot

    @property
    def read_settings(self) -> ReadSettings:
        """The settings with which the build read documents, but with ``on_error="stop"``.

        A row that cannot be used therefore stops an update, even if the build skipped such rows.
        """
        from sbert_search.index.building.read_settings import ReadSettings

        build = self.state.manifest.build
        settings = from_mapping(ReadSettings, build.settings) if build else ReadSettings()
        return replace(settings, on_error="stop")

    @property
    def root(self) -> Path | None:
        """The folder whose files are the documents, by which `Index.build` or `sync` read them.

        The id of such a document is the path of its file relative to this folder. None: the
        documents have other sources.
        """
        build = self.state.manifest.build
        return Path(build.root) if build and build.root else None

    @property
    def identity(self) -> ModelIdentity:
        """The model that built the index."""
        return ModelIdentity.from_mapping(self.state.manifest.settings.identity)

    def __len__(self) -> int:
        return self.state.n_docs

    def __contains__(self, doc_id: object) -> bool:
        """Whether the index holds a document with this id; False if it is no text or integer."""
        return is_id(doc_id) and self.state.lookup([str(doc_id)])[0] >= 0

    def __iter__(self) -> Iterator[Document]:
        """Read all documents in the order in which they were added."""
        return iter_documents(self.state, None)

    def __repr__(self) -> str:
        documents = "1 document" if len(self) == 1 else f"{len(self):,} documents"
        return f"<Index {self.path}: {documents}, model {self.identity.name}>"

    def get(self, doc_id: str | int) -> Document | None:
        """Read a document by its id; None if the index does not hold it.

        Raises:
            QueryError: The id is neither text nor an integer.
            CorruptIndex: The document cannot be read.
        """
        return get_document(self.state, id_text(doc_id))

    def documents(self, where: str | None = None) -> Iterator[Document]:
        """Read the documents that match a filter, in the order in which they were added.

        Raises:
            QueryError: The filter is wrong.
            CorruptIndex: A document cannot be read.
        """
        return iter_documents(self.state, where)

    def scroll(self, n: int = 100, *, after: int | None = None, where: str | None = None) -> Page:
        """Read documents page by page, in the order in which they were added.

        Documents that are added between two calls appear on a later page. Replacing a document
        moves it to the end of the order.

        Args:
            n: Maximum number of documents on the page.
            after: The attribute ``after`` of the previous page; None: read the first page.
            where: A filter over the metadata; None: all documents.

        Raises:
            QueryError: ``n`` is not an integer of at least 1, ``after`` is not an integer, or the
                filter is wrong.
            CorruptIndex: A document cannot be read.
        """
        return read_page(self.state, n, after, where)

    def sample(self, n: int = 10, *, seed: int = 0, where: str | None = None) -> list[Document]:
        """Draw ``n`` different documents at random, or all if there are fewer.

        The same seed draws the same documents from the same state and filter.

        Raises:
            QueryError: ``n`` is not an integer of at least 1, ``seed`` is not an integer of at
                least 0, or the filter is wrong.
            CorruptIndex: A document cannot be read.
        """
        return sample_documents(self.state, n, seed, where)

    def refresh(self) -> bool:
        """Move to the newest committed state, for this object and each `SearchEngine` that uses it.

        A search that has begun finishes on the old state. Only files that the old state lacks are
        opened. If no newer state was committed, only the manifest (the file that lists the files
        of the newest state) is read.

        Returns:
            Whether there was a newer state.

        Raises:
            NotAnIndex: The folder no longer holds an index.
            CorruptIndex: A file differs from what was committed.
            ModelMismatch: The folder now holds an index with another model.
            IndexStoreError: The folder now holds an index whose vectors have another metric,
                dimension or type.
            UnfinishedBuild: The folder now holds an unfinished build in place of a finished index.
        """
        return self.store.refresh()

    def require_finished(self) -> None:
        """Refuse an index whose build is not complete.

        Raises:
            UnfinishedBuild: The build is not complete.
        """
        build = self.state.manifest.build
        if build is not None and not build.finished:
            raise UnfinishedBuild(
                f"{self.path} is an unfinished build ({build.rows:,} rows are done). Run its "
                "`index build` command again: it resumes from there."
            )


# A search must not wait for the import of code that maintains indexes, so each method below imports
# the code that it calls.


class MaintainedIndex(ReadableIndex):
    """Methods that keep an index sound and fast; none of them adds a document."""

    def info(self) -> IndexInfo:
        """Describe the contents of the index and how it was made."""
        from sbert_search.index.upkeep.info import describe

        return describe(self.state)

    def check(self) -> CheckReport:
        """Read every file and verify its checksum and structure."""
        from sbert_search.index.upkeep.check import check

        return check(self.path)

    def drift(self, target: float | None = None) -> DriftReport:
        """Measure how far updates have degraded the index since it was built or tuned.

        Args:
            target: Recall@10 below which the report recommends actions; None: the recall for which
                the index was tuned, or 0.95.
        """
        from sbert_search.index.upkeep.info import measure_drift

        return measure_drift(self.state, target)

    def repair(self) -> list[str]:
        """Delete damaged derived files and unreferenced files, and make missing derived files.

        Derived files are FAISS indexes, postings and word lists. They are made from the stored
        vectors and documents. An unreferenced file belongs to no committed state.

        Returns:
            Names of the deleted files.
        """
        with self.store.writer() as writer:
            return writer.repair()

    def compact(self, *, memory_bytes: int | None = None, retrain: bool = False) -> None:
        """Merge segments, drop deleted and replaced rows, and make missing FAISS files.

        A segment is an immutable set of files for consecutive rows.

        Args:
            memory_bytes: Memory limit of the process in bytes, without memory-mapped files. None:
                no limit.
            retrain: Train FAISS again on the current vectors, and rebuild all FAISS files.

        Raises:
            ConfigError: A FAISS index, or the work memory of a merge, would exceed
                ``memory_bytes``.
        """
        from sbert_search.base import memory
        from sbert_search.index.upkeep import compaction

        memory.give_back_freed(memory_bytes)
        memory.require(memory_bytes, compaction.WORK_BYTES, "Compaction")
        with self.store.writer() as writer:
            writer.compact(memory_bytes=memory_bytes, retrain=retrain)

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Change the settings of lexical search, and make or delete its postings accordingly.

        Args:
            settings: The new settings; None: the index is left without lexical search.
        """
        with self.store.writer() as writer:
            self.require_finished()
            writer.set_lexical(settings)

    def backup(self, target: str | Path) -> None:
        """Copy the newest state to a new folder; on the same disk, as hard links if possible.

        Raises:
            ConfigError: The target lies in the folder of this index.
            IndexStoreError: The target exists already, or cannot be written.
        """
        from sbert_search.base.folders import require_apart

        require_apart(Path(target), [self.path], "The backup")
        self.store.backup_to(target)
