"""`Index`, the class by which users build, read, update, check, tune and back up an index."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from sbert_search.config import from_mapping
from sbert_search.embed.arguments import CheckedOptions, EmbedderOptions, MatchingOptions, ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, IndexStoreError, QueryError, UnfinishedBuild
from sbert_search.index import documents as read
from sbert_search.index.documents import DocIds, Page
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.store import IndexStore
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Document, Where

# A search must not wait for the import of code that writes, checks or tunes indexes, so the methods
# that do so import it (tests/cli/test_cold.py checks this).
if TYPE_CHECKING:
    from sbert_search.embed.pipeline import EmbedBatches
    from sbert_search.index.building.build import BuildKeywords, BuildSettings
    from sbert_search.index.building.ingest import IngestReport
    from sbert_search.index.building.migration import MigrationPlan, MigrationReport
    from sbert_search.index.building.settings import ReadKeywords, ReadSettings
    from sbert_search.index.building.sync import SyncReport
    from sbert_search.index.settings import LexicalSettings
    from sbert_search.index.storage.manifest import QueryModel
    from sbert_search.index.tuning.settings import TuneSettings
    from sbert_search.index.tuning.tune import TuneReport
    from sbert_search.index.upkeep.check import CheckReport
    from sbert_search.index.upkeep.info import DriftReport, IndexInfo
    from sbert_search.text.ids import IdsLike
    from sbert_search.text.spool import Sources
    from sbert_search.text.vectors import VectorsLike


class Index:
    """An index on disk, with the name of the model that made its vectors.

    This object reads one immutable state: the result of one commit. Its methods that change the
    index, such as `add`, `delete` and `compact`, move it to the state that they commit. `refresh`
    moves it to the newest state, which another process or another `Index` of the same folder may
    have committed.

    A sharded index has several indexes (shards) in one folder, which are searched, changed and
    stored as one. The id of a document decides which shard holds it. A commit that changes several
    shards is durable and visible in all of them or in none.

    Example:
        >>> rows = [{"_id": "mill", "text": "A river turns the wheel.", "year": 1850}]
        >>> index = Index.build(rows, model="hashing")
        >>> index.add([{"_id": "bread", "text": "Yeast makes the dough rise."}]).counts.indexed
        1
        >>> len(index), "mill" in index, index.get("bread").text
        (2, True, 'Yeast makes the dough rise.')
    """

    def __init__(self, store: IndexStore) -> None:
        self.store = store

    def close(self) -> None:
        """Release the files of the index; a temporary index is deleted. It cannot be used again.

        A ``with`` block calls this at its end: ``with Index.open("my.index") as index: ...``.
        Without it, the files are released with the object.
        """
        if (delete := self.__dict__.get("_delete")) is not None:
            delete()
        self.__dict__.pop("store", None)
        self.__dict__.pop("_kept", None)

    def __enter__(self) -> Self:
        return self

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # a type checker that sees __getattr__ accepts misspelt names

        def __getattr__(self, name: str) -> object:
            if name == "store":
                raise IndexStoreError("The index is closed; open it again with Index.open.")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # --- Making and opening ---------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path, *, wait_s: float = 0.0) -> Self:
        """Open an index, and check the size of each file and the hash of each smaller data file.

        `check` verifies all files in full.

        Args:
            path: The folder.
            wait_s: Seconds that a method which changes the index waits while another process is
                writing to the index.

        Raises:
            NotAnIndex: The folder holds no index.
            CorruptIndex: A file or a shard differs from the one that was committed.
            IndexStoreError: A shard has another model or other settings than the first one, or
                this process may not read a file.
        """
        return cls(IndexStore.open(path, wait_s=wait_s))

    @classmethod
    def build(
        cls,
        sources: Sources,
        *,
        out: str | Path | None = None,
        model: ModelLike | None = None,
        vectors: VectorsLike | None = None,
        settings: BuildSettings | None = None,
        runner: EmbedBatches | None = None,
        n_shards: int | None = None,
        **keywords: Unpack[BuildKeywords],
    ) -> Self:
        """Build an index from files or from rows in memory, or resume a build that was stopped.

        If ``out`` holds the finished index of the same rows, settings and model, it is returned.

        Rows in memory are copied to a temporary file first, since a build reads its source twice.
        To resume their build, pass the same rows in the same order.

        Args:
            sources: A file, folder or glob, or several of them. Or rows in memory: a list or
                generator of dicts or `Document` objects; a table of pandas, polars, pyarrow or any
                library with Arrow's C interface; a ``datasets.Dataset``.
            out: The folder of the new index. None: a temporary folder. It is deleted when the last
                reference to the index is gone, at the latest when the process ends; `backup` makes
                a copy that stays.
            model: A model's name or folder, an `Embedder` or a ``SentenceTransformer``; None: the
                default model of `Embedder`, or no model if vectors are given.
            vectors: Vectors that are indexed in place of those that a model would make: a float
                array (n_rows, dim) of numpy (also memory-mapped) or of torch on the CPU; the path
                of an ``.npy`` file; or the name of a column of the source. Rows then need no text.
                If ``model`` is given too, the index can still be searched by text. A row is a bad
                row if its vector is not finite or, for the metric cosine, all zeros; or if the
                column has no vector in this row, or one of another dimension than the first.
            settings: Metric, fields and other settings; None: the defaults.
            runner: The function that embeds the documents, such as a `RayRunner`, which uses other
                machines; None: this process embeds them.
            n_shards: Number of shards of a sharded index, from 1 to 128, which cannot be changed
                later; None: the index has no shards.
            keywords: Fields of `BuildSettings`, which replace those of ``settings``; and options
                for opening a model by name, such as ``device``, ``engine`` and ``precision``.

        Raises:
            ConfigError: A setting has a wrong value, ``n_shards`` is out of range, or the FAISS
                index that ``settings.spec`` names would exceed the memory limit.
            TypeError: A keyword is unknown.
            CorpusError: A source cannot be read or holds a bad row, or there is not one vector for
                each row.
            IndexStoreError: The folder cannot become an index, or already holds a finished index of
                other rows or settings, or an index with another number of shards.
            ModelMismatch: The vectors have another dimension than those of the model, or a source
                records that another model made them.
        """
        from sbert_search.index.building.build import build_with_model

        def build(folder: Path) -> object:
            return build_with_model(
                sources,
                folder,
                model,
                vectors,
                settings,
                keywords,
                runner=runner,
                n_shards=n_shards,
            )

        return cls._built(build, out)

    @classmethod
    def _built(cls, build: Callable[[Path], object], out: str | Path | None) -> Self:
        """Build into ``out``; None: into a temporary folder, which is deleted with the index."""
        if out is not None:
            build(Path(out))
            return cls.open(out)
        from sbert_search.base.files import TemporaryFolder  # not for queries

        scratch = TemporaryFolder()
        try:
            build(scratch.path)
            index = cls.open(scratch.path)
        except BaseException:
            scratch.remove()
            raise
        index.__dict__["_delete"] = weakref.finalize(index, scratch.remove)
        return index

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        *,
        ids: Iterable[str | int] | None = None,
        out: str | Path | None = None,
        model: ModelLike | None = None,
        vectors: VectorsLike | None = None,
        **keywords: Unpack[BuildKeywords],
    ) -> Self:
        """Build an index from texts in memory.

        Args:
            texts: The texts, in a list or from a generator.
            ids: One id for each text; None: the number of the text, from 0.
            out: As for `build`.
            model: As for `build`.
            vectors: One vector for each text, as for `build`; None: the model makes the vectors.
            keywords: As for `build`.

        Raises:
            CorpusError: A text is blank or not a string, an id occurs with two different texts, or
                the numbers of ids and texts differ.
            ConfigError: In the same cases as `build`.
            IndexStoreError: In the same cases as `build`.
        """
        from sbert_search.text.spool import text_rows

        rows = text_rows(texts, ids)
        return cls.build(rows, out=out, model=model, vectors=vectors, **keywords)

    @classmethod
    def create(
        cls,
        out: str | Path,
        *,
        model: ModelLike | None = None,
        dim: int | None = None,
        settings: BuildSettings | None = None,
        n_shards: int | None = None,
        **keywords: Unpack[BuildKeywords],
    ) -> Self:
        """Make an index without documents, to which `add`, `upsert` or `sync` can add them.

        Args:
            out: The new folder.
            model: As for `build`.
            dim: Dimension of the vectors, for an index without a model; its documents must be
                added with vectors. None: the index has a model.
            settings: As for `build`.
            n_shards: As for `build`.
            keywords: As for `build`.

        Raises:
            ConfigError: A setting has a wrong value, or both a model and ``dim`` are given.
            TypeError: A keyword is unknown.
            IndexStoreError: The folder is not empty, or cannot become an index.
        """
        from sbert_search.index.building.build import create_index

        return cls(create_index(Path(out), model, dim, settings, keywords, n_shards))

    @classmethod
    def from_vectors(
        cls,
        vectors: VectorsLike,
        *,
        ids: IdsLike | None = None,
        out: str | Path | None = None,
        model: ModelLike | None = None,
        **keywords: Unpack[BuildKeywords],
    ) -> Self:
        """Build an index of vectors and ids, without texts, about as fast as the disk can write.

        For rows with texts or metadata, or for a sharded index, pass ``vectors`` to `build`.

        Args:
            vectors: As for `build`, but not the name of a column.
            ids: One id for each vector, in a list or an array of numpy or Arrow; None: the number
                of the vector, from 0.
            out: As for `build`.
            model: The model that made the vectors, for searches by text; None: the index has no
                model and cannot be searched by text.
            keywords: As for `build`.

        Raises:
            CorpusError: A vector or an id cannot be used, an id occurs with two different vectors,
                or the numbers of ids and vectors differ.
            ConfigError: In the same cases as `build`.
            IndexStoreError: In the same cases as `build`.
            ModelMismatch: The vectors have another dimension than those of the model.
        """
        from sbert_search.index.building.id_vectors import build_from_vectors

        def build(folder: Path) -> object:
            return build_from_vectors(vectors, ids, folder, model, keywords)

        return cls._built(build, out)

    # --- Reading ----------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self.store.path

    @property
    def state(self) -> Snapshot:
        """The state that this object reads."""
        return self.store.snapshot

    @property
    def n_shards(self) -> int:
        """Number of shards; 1 if the index has none."""
        return self.state.n_shards

    @property
    def read_settings(self) -> ReadSettings:
        """The settings with which the build read documents, but with ``on_error="stop"``.

        A row that cannot be used therefore stops an update, even if the build skipped such rows.
        """
        from sbert_search.index.building.settings import ReadSettings

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
        return read.is_id(doc_id) and self.state.lookup([str(doc_id)])[0] >= 0

    def __iter__(self) -> Iterator[Document]:
        """Read all documents in the order in which they were added."""
        return read.iter_documents(self.state, None)

    def __repr__(self) -> str:
        documents = "1 document" if len(self) == 1 else f"{len(self):,} documents"
        return f"<Index {self.path}: {documents}, model {self.identity.name}>"

    def get(self, doc_id: str | int) -> Document | None:
        """Read a document by its id; None if the index does not hold it.

        Raises:
            QueryError: The id is neither text nor an integer.
            CorruptIndex: The document cannot be read.
        """
        return read.get_document(self.state, read.id_text(doc_id))

    def documents(
        self,
        where: Where | None = None,
        *,
        sort: str | Sequence[str] | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> Iterator[Document]:
        """Read the documents that match a filter.

        Args:
            where: A filter over the metadata; None: all documents.
            sort: Columns by whose values the documents are ordered, as in a search. None, and
                documents with equal values: in the order in which they were added.
            offset: Number of first documents to leave out.
            limit: Maximum number of documents to read; None: no limit.

        Raises:
            QueryError: The filter is wrong, there is no such column, its values are lists, or a
                number is negative.
            CorruptIndex: A document cannot be read.
        """
        return read.iter_documents(self.state, where, sort, offset, limit)

    def scroll(self, n: int = 100, *, after: int | None = None, where: Where | None = None) -> Page:
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
        return read.read_page(self.state, n, after, where)

    def sample(self, n: int = 10, *, seed: int = 0, where: Where | None = None) -> list[Document]:
        """Draw ``n`` different documents at random, or all if there are fewer.

        The same seed draws the same documents from the same state and filter.

        Raises:
            QueryError: ``n`` is not an integer of at least 1, ``seed`` is not an integer of at
                least 0, or the filter is wrong.
            CorruptIndex: A document cannot be read.
        """
        return read.sample_documents(self.state, n, seed, where)

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

    def matching_embedder(
        self,
        model: ModelLike | None = None,
        *,
        allow_inexact: bool = False,
        quick: bool = False,
        named: bool = True,
        **options: Unpack[EmbedderOptions],
    ) -> TextEmbedder:
        """Open the model of this index, and check that its vectors agree with those of the index.

        The index stores a few check texts with their vectors. The model embeds these texts, and
        each vector must have at least a certain cosine with the stored one.

        Args:
            model: A name, a folder or an open embedder; None: the model that the index names.
            allow_inexact: Whether to warn, and not to raise an error, if the model in another
                engine or precision gives vectors below that cosine.
            quick: Use the exported ONNX graph of the model if the cache has one whose vectors agree
                with those of the index. The graph opens in a fraction of a second; torch opens
                slowly, but embeds many texts faster.
            named: Report the name and engine of the model as a note; False: as a detail, which
                a command prints only with ``--verbose``.
            options: Options for opening a model by name, such as ``device``, ``engine`` and
                ``precision``. On a CPU, the precision ``auto`` is that of the index.

        Raises:
            ModelMismatch: The model is not the one that built the index; its vectors do not agree
                with those of the index; or the index was built from given vectors without a model.
            UnfinishedBuild: The build of the index is not complete.
        """
        from sbert_search.index.building.model_check import open_matching

        self.require_finished()
        return open_matching(
            self.state, model, options, allow_inexact=allow_inexact, quick=quick, named=named
        )

    def kept_embedder(
        self,
        model: ModelLike | None = None,
        *,
        allow_inexact: bool = False,
        **options: Unpack[MatchingOptions],
    ) -> TextEmbedder:
        """Open the model as `matching_embedder` does, or return the one it opened at the last call.

        The index holds one model that it opened by name, with its memory, until it is closed or
        other arguments are given.
        """
        name = self.identity.name if model is None else model
        asked = (name, self.state.settings.digest, options)
        if (kept := self.__dict__.get("_kept")) and kept[0] == asked:
            return self.matching_embedder(kept[1], allow_inexact=allow_inexact)
        self.__dict__.pop("_kept", None)  # its memory is free before another model is opened
        embedder = self.matching_embedder(model, allow_inexact=allow_inexact, **options)
        if isinstance(name, (str, Path)):
            self.__dict__["_kept"] = (asked, embedder)
        return embedder

    # --- Changing ---------------------------------------------------------------------------------

    def add(
        self,
        sources: Sources,
        *,
        model: ModelLike | None = None,
        vectors: VectorsLike | None = None,
        settings: ReadSettings | None = None,
        **keywords: Unpack[ReadKeywords],
    ) -> IngestReport:
        """Add documents. A document whose id is already indexed with other content is a bad row.

        A document that is already indexed with the same content is skipped. If a text must be
        embedded, the model is opened, and this object holds it for further updates, with its
        memory, until `close` or until an update names another model, device or precision.

        Args:
            sources: Paths or rows, as for `build`.
            model: An embedder, a name or a folder; None: the model named in the index.
            vectors: Vectors that are indexed in place of those that the model would make, as for
                `build`. The model of the index must have made them; this is checked only for a
                column of a Parquet file that records its model. None: the vectors of the column
                that the build named; if it named none, the model makes the vectors.
            settings: Names of fields, and how to treat bad rows and long texts; None: as in the
                build, except that a bad row is an error.
            keywords: Fields of `ReadSettings`, which replace those of ``settings``; and options of
                `matching_embedder`.

        Raises:
            ConfigError: A setting has a wrong value.
            TypeError: A keyword is unknown.
            CorpusError: A source cannot be read or holds a bad row. Documents committed before the
                error stay; a repetition of the call skips them.
            ModelMismatch: The model, or the model that a source records for its vectors, is not the
                one that built the index; or the index has no model, and no vectors are given.
            IndexLocked: Another process is writing.
        """
        from sbert_search.index.building.update import update

        return update(self, "add", sources, model, vectors, settings, keywords)

    def upsert(
        self,
        sources: Sources,
        *,
        model: ModelLike | None = None,
        vectors: VectorsLike | None = None,
        settings: ReadSettings | None = None,
        partial: bool = False,
        clear: Mapping[str, Collection[str]] | None = None,
        dry_run: bool = False,
        **keywords: Unpack[ReadKeywords],
    ) -> IngestReport:
        """Add documents, and replace those whose id is indexed with other content.

        A given vector is part of the content: the same text with another vector replaces the
        document. A document with the text it had keeps its vectors; if all do, no model is opened.

        With ``partial``, a row changes the document with its id, which must be indexed: fields
        that the row lacks, or whose value is missing or blank, keep their values, except for the
        columns that ``clear`` names for its id: their values are removed, and the row has none.
        With ``dry_run``, rows are read and counted, and nothing is written. Other arguments and
        errors are those of `add`.

        Example:
            >>> index = Index.build([{"_id": "a", "text": "a river", "price": 1}], model="hashing")
            >>> index.upsert([{"_id": "a", "price": 2}], partial=True).reused
            1
            >>> index.get("a").text, index.get("a").metadata["price"]
            ('a river', 2)
            >>> index.upsert([{"_id": "a"}], partial=True, clear={"a": ["price"]}).counts.replaced
            1
        """
        from sbert_search.index.building.update import update

        return update(
            self,
            "upsert",
            sources,
            model,
            vectors,
            settings,
            keywords,
            partial_rows=partial,
            clear=clear,
            dry_run=dry_run,
        )

    def sync(
        self,
        folder: str | Path,
        *,
        dry_run: bool = False,
        allow_empty: bool = False,
        moved: bool = False,
        model: ModelLike | None = None,
        settings: ReadSettings | None = None,
        **keywords: Unpack[ReadKeywords],
    ) -> SyncReport:
        """Update the documents of a folder's files, or of a table's rows, so that they equal these.

        If ``folder`` is a file of rows, such as CSV or Parquet, documents that are neither in it
        nor files of a folder are deleted; the report names ids in place of paths.

        New files are added, documents of changed files are replaced, and documents of removed files
        are deleted. Documents of other sources stay. Every file is read and compared by its hash.
        The model is opened only if there is a text to embed. If a sync is interrupted, the next
        call finishes it.

        Args:
            folder: The folder from which the index was built, or a folder below it. The first sync
                of an index that was built from other sources makes this folder its root. Or a file
                of rows.
            dry_run: Only report what would be done.
            allow_empty: Accept an absent or empty folder, and delete the documents of its files; or
                a table that lacks more than half of the documents that are no files.
            moved: Whether ``folder`` is the root of the index at a new place.
            model: As for `add`.
            settings: As for `add`.
            keywords: As for `add`; for a folder without ``fields``, ``on_error``, ``query`` and
                ``text_as``.

        Raises:
            ConfigError: A setting has a wrong value, or is one that a sync does not use.
            TypeError: A keyword is unknown.
            CorpusError: The folder is absent or holds no file that can be read. Or the table cannot
                be read, has a bad row or lacks most documents.
            IndexStoreError: The folder lies outside the root of the index, or a row of the table
                has the id of a file.
            ModelMismatch: The model is not the one that built the index.
            IndexLocked: Another process is writing.
        """
        from sbert_search.index.building.update import sync, sync_table
        from sbert_search.text.sources import is_table

        if is_table(folder := Path(folder)):
            return sync_table(
                self, folder, model, settings, keywords, dry_run=dry_run, allow_empty=allow_empty
            )
        return sync(
            self,
            folder,
            model,
            settings,
            keywords,
            dry_run=dry_run,
            allow_empty=allow_empty,
            moved=moved,
        )

    def delete(self, ids: DocIds | None = None, *, where: Where | None = None) -> int:
        """Delete documents by id or by a filter over the metadata, in one commit.

        Args:
            ids: One id or several ids. An integer stands for its decimal text, as in the sources of
                a build.
            where: A filter over the metadata, as for a search.

        Returns:
            The number of documents deleted; unknown ids are ignored.

        Raises:
            QueryError: Neither or both of ids and filter are given, an id is neither text nor an
                integer, or the filter is wrong.
            IndexLocked: Another process is writing.
        """
        if (ids is None) == (where is None):
            raise QueryError("Name what to delete: either ids or a filter (where).")
        from sbert_search.index.building.update import settle

        doc_ids = [] if ids is None else read.id_texts(ids)
        with self.store.writer() as writer:
            self.require_finished()
            before = len(self)  # in the newest state, to which the writer has moved this object
            if where is not None:
                writer.delete_where(where)
            else:
                writer.delete(doc_ids)
            settle(writer)
        return before - len(self)

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Change the settings of lexical search, and make or delete its postings accordingly.

        Args:
            settings: The new settings; None: the index is left without lexical search.
        """
        with self.store.writer() as writer:
            self.require_finished()
            writer.set_lexical(settings)

    # --- Upkeep -----------------------------------------------------------------------------------

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

    def compact(self, *, retrain: bool = False) -> None:
        """Merge segments, drop deleted and replaced rows, and make missing FAISS files.

        A segment is an immutable set of files for consecutive rows.

        Args:
            retrain: Train FAISS again on the current vectors, and rebuild all FAISS files.

        Raises:
            ConfigError: A FAISS index, or the work memory of a merge, would exceed
                the memory limit.
        """
        from sbert_search.base import memory
        from sbert_search.index.upkeep import compaction

        memory.require(compaction.WORK_BYTES, "Compaction")
        with self.store.writer() as writer:
            writer.compact(retrain=retrain)

    def migrate(
        self,
        model: ModelLike | None = None,
        *,
        vectors: VectorsLike | None = None,
        switch: bool = True,
        max_minutes: float | None = None,
        runner: EmbedBatches | None = None,
        **options: Unpack[EmbedderOptions],
    ) -> MigrationReport:
        """Embed all passages with another model while the index is used, then switch to it.

        Searches and updates go on with the present model until one commit switches to the new one.
        New vectors are committed while they are made, so the same call resumes an interrupted
        migration. The old vectors stay, for `roll_back`, until `drop_unused_vectors`.

        Args:
            model: As for `build`; None: the index has no model afterwards, if vectors are given.
            vectors: Vectors to take in place of those that the model would make, one for each live
                passage in the order of `scroll`: floats (n_passages, dim) or the path of an
                ``.npy`` file. Writers wait meanwhile.
            switch: Whether to switch to the model; False: only make its vectors.
            max_minutes: Time after which to stop at a commit; None: no limit.
            runner: As for `build`.
            options: Options for opening a model by name; see `Embedder`.

        Raises:
            ConfigError: The index has the vectors of this model already, or neither a model nor
                vectors are named.
            CorpusError: The given vectors are not one for each passage, or one cannot be used.
            ModelMismatch: A migration to another model has begun, or the given vectors have another
                dimension than those of the model.
            IndexStoreError: The model would cut off a passage, a document has no text, or the
                vectors of the model before are still there.
            IndexLocked: Another process is writing for longer than ``wait_s``.

        Example:
            >>> index = Index.from_texts(["a river", "a mill"], model="hashing")
            >>> index.migrate("hashing:64").switched
            True
            >>> index.identity.name
            'hashing:64'
        """
        from sbert_search.embed.pipeline import embed_batches
        from sbert_search.index.building.migration import migrate, migrate_to_given
        from sbert_search.index.building.model_check import as_embedder

        if vectors is not None:
            if max_minutes is not None or runner is not None:
                raise ConfigError(
                    "max_minutes and runner are for a model; given vectors need neither."
                )
            embedder = None if model is None else as_embedder(model, **options)
            return migrate_to_given(self, vectors, embedder, switch=switch)
        if model is None:
            raise ConfigError("Name the new model, or give vectors.")
        return migrate(
            self,
            model,
            options,
            switch=switch,
            max_minutes=max_minutes,
            embed=runner or embed_batches,
        )

    def plan_migration(self, model: ModelLike, **options: Unpack[EmbedderOptions]) -> MigrationPlan:
        """Predict time and space of `migrate` from a sample of the passages; change nothing.

        Args:
            model: As for `build`.
            options: As for `migrate`.

        Raises:
            IndexStoreError: The model would cut off a passage.

        Example:
            >>> index = Index.from_texts(["a river", "a mill"], model="hashing")
            >>> index.plan_migration("hashing:64").changes["dim"]
            (384, 64)
        """
        from sbert_search.index.building.migration import plan_migration

        return plan_migration(self, model, options)

    def preview_migration(self) -> Self:
        """Open the index as the switch of a migration will leave it, to be searched only.

        Its searches use the vectors of the new model. Vectors that a FAISS index will hold are
        searched exactly until the switch, which makes it.

        Raises:
            IndexStoreError: No migration has begun, or passages still lack a vector of the new
                model: call `migrate` with ``switch=False`` first.

        Example:
            >>> index = Index.from_texts(["a river", "a mill"], model="hashing")
            >>> report = index.migrate("hashing:64", switch=False)
            >>> index.preview_migration().identity.name, index.identity.name
            ('hashing:64', 'hashing')
        """
        from sbert_search.index.building.migration import preview

        return preview(self)

    def roll_back(self, **options: Unpack[EmbedderOptions]) -> MigrationReport:
        """Switch back to the model before `migrate`, which first embeds the rows added since.

        The vectors of the new model stay: `migrate` to it again only embeds rows added since.

        Args:
            options: Options for opening the model, if there are such rows; see `Embedder`.

        Raises:
            IndexStoreError: The index was not migrated, or the old vectors were dropped.
        """
        from sbert_search.index.building.migration import roll_back

        return roll_back(self, options)

    def drop_unused_vectors(self) -> list[str]:
        """Remove the vectors of the model before a migration, or of one that has not switched.

        Returns:
            Names of the models whose vectors were removed.
        """
        from sbert_search.index.building.migration import drop_unused

        return drop_unused(self)

    @property
    def query_models(self) -> Mapping[str, QueryModel]:
        """The query models of this index, by name; see `add_query_model`."""
        return self.state.manifest.active_query_models

    def add_query_model(
        self, model: str | Path, name: str = "fast", **options: Unpack[EmbedderOptions]
    ) -> QueryModel:
        """Let a small model answer queries in place of the model of this index, where it is named.

        Its vectors must lie in the space of the index's vectors, as those of a model distilled from
        the index's model do. This is measured with stored passages. A query model of the same name
        is replaced. `SearchEngine` uses it with ``query_model=NAME``. After a change of the model
        of the index by `migrate`, it is not used until `roll_back`.

        Args:
            model: A folder or a name on the Hugging Face hub. It stays where it is, and a search
                refuses it if its files have changed.
            name: Up to 64 letters, digits, dots, hyphens and underscores.
            options: Options for opening the model; see `Embedder`.

        Returns:
            What was recorded, with the mean ``cosine`` of its vectors of stored passages, and its
            ``retention``: how many of the ten nearest passages of each of these it finds, too, of
            fewer if there are fewer than 100; None if there are fewer than 50.

        Raises:
            ConfigError: The name is invalid, or the model is an object in memory.
            ModelMismatch: The vectors of the model are not in the space of the index.
            IndexStoreError: The index has too few texts to measure that.
            IndexLocked: Another process is writing for longer than ``wait_s``.

        Example:
            >>> index = Index.from_texts(["a river", "a mill"], model="hashing")
            >>> round(index.add_query_model("hashing").cosine, 3)
            1.0
            >>> [hit.doc_id for hit in SearchEngine(index, query_model="fast").search("mill", k=1)]
            ['1']
        """
        from sbert_search.index.building.query_models import add

        return add(self, model, name, **options)

    def remove_query_model(self, name: str) -> None:
        """Remove a query model from the index; its files stay.

        Raises:
            ConfigError: The index has no query model of this name.
        """
        from sbert_search.index.building.model_check import query_settings
        from sbert_search.index.building.query_models import put

        query_settings(self.state, name)
        put(self, name, None)

    def backup(self, target: str | Path) -> None:
        """Copy the newest state to a new folder; on the same disk, as hard links if possible.

        Raises:
            ConfigError: The target lies in the folder of this index.
            IndexStoreError: The target exists already, or cannot be written.
        """
        from sbert_search.base.folders import require_apart

        require_apart(Path(target), [self.path], "The backup")
        self.store.backup_to(target)

    def tune(
        self,
        settings: TuneSettings | None = None,
        *,
        queries: str | Path | None = None,
        dry_run: bool = False,
        model: ModelLike | None = None,
        **options: Unpack[CheckedOptions],
    ) -> TuneReport:
        """Measure types of FAISS index on the vectors of this index, and build the best of them.

        Args:
            settings: Targets and limits; None: recall@10 of 0.95 within ten minutes.
            queries: A file of typical queries; None: documents of the index serve as queries.
            dry_run: Measure on a sample, predict the results for all vectors, and change nothing.
            model: The model that embeds the queries; as for `matching_embedder`.
            options: As for `matching_embedder`.

        Raises:
            ConfigError: The memory budget is too small for the work, or ``model`` or ``options``
                are given without ``queries``.
            IndexStoreError: No type of index is within the limits, or the index has fewer than 3
                passages; the index is unchanged.
            CorpusError: The queries cannot be read.
            IndexLocked: Another process is writing.
        """
        from sbert_search.index.tuning.tune import tune_index

        self.require_finished()
        return tune_index(self, settings, queries, model, options, dry_run=dry_run)
