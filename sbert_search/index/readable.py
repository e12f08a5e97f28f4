"""The part of `Index` that reads one state of an index: documents, ids and settings."""

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
    from sbert_search.index.ingestion.read_settings import ReadSettings


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
        from sbert_search.index.ingestion.read_settings import ReadSettings

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
