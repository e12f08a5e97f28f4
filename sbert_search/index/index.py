"""`Index`, the class by which users build, update, check, tune and back up an index."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypedDict, Unpack, cast

from sbert_search.base import memory
from sbert_search.base.options import if_offered
from sbert_search.base.progress import detail, note, warn
from sbert_search.config import is_integer, unknown_name
from sbert_search.embed.arguments import CheckedOptions, EmbedderOptions, ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import (
    ConfigError,
    ModelError,
    ModelMismatch,
    QueryError,
    SbertSearchError,
)
from sbert_search.index.documents import DocIds, id_texts
from sbert_search.index.readable import MaintainedIndex
from sbert_search.index.store import IndexStore, StoreMaker

# A search must not wait for the import of code that reads sources and writes indexes. Only the
# methods that build and update an index import such code (tests/cli/test_cold.py checks this).
if TYPE_CHECKING:
    from sbert_search.embed.pipeline import EmbedBatches
    from sbert_search.index.building.build import BuildKeywords, BuildSettings
    from sbert_search.index.building.ingest import IngestReport, Mode
    from sbert_search.index.building.read_settings import ReadKeywords, ReadSettings
    from sbert_search.index.building.sync import SyncReport
    from sbert_search.index.tuning.measuring import Floats
    from sbert_search.index.tuning.settings import TuneSettings
    from sbert_search.index.tuning.tune import TuneReport
    from sbert_search.index.writer import IndexWriter
    from sbert_search.text.ids import IdsLike
    from sbert_search.text.spool import Sources
    from sbert_search.text.vectors import VectorsLike

TUNING_BYTES = 64 << 20  # bytes of memory that `tune` needs in addition to its sample of vectors


class GivenToBuild(TypedDict):
    """The arguments of `Index.build` other than ``sources``, ``out`` and settings."""

    model: ModelLike | None
    vectors: VectorsLike | None
    memory_bytes: int | None
    runner: EmbedBatches | None


class Index(MaintainedIndex):
    """An index on disk, with the name of the model that made its vectors.

    This object reads one immutable state: the result of one commit. Its methods that change the
    index, such as `add`, `delete` and `compact`, move it to the state that they commit. `refresh`
    moves it to the newest state, which another process or another `Index` of the same folder may
    have committed.
    """

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
            CorruptIndex: A file differs from the one that was committed.
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
        memory_bytes: int | None = None,
        runner: EmbedBatches | None = None,
        **keywords: Unpack[BuildKeywords],
    ) -> Self:
        """Build an index from files or from rows in memory, or resume a build that was stopped.

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
            memory_bytes: Memory limit of the process in bytes, without memory-mapped files. None:
                no limit.
            runner: The function that embeds the documents, such as a `RayRunner`, which uses other
                machines; None: this process embeds them.
            keywords: Fields of `BuildSettings`, which replace those of ``settings``; and options
                for opening a model by name, such as ``device``, ``engine`` and ``precision``.

        Raises:
            ConfigError: A setting has a wrong value, or the FAISS index that ``settings.spec``
                names would exceed ``memory_bytes``.
            TypeError: A keyword is unknown.
            CorpusError: A source cannot be read or holds a bad row, or there is not one vector for
                each row.
            IndexStoreError: The folder cannot become an index, or already holds a finished
                index.
            ModelMismatch: The vectors have another dimension than those of the model, or a source
                records that another model made them.
        """
        given: GivenToBuild = {
            "model": model,
            "vectors": vectors,
            "memory_bytes": memory_bytes,
            "runner": runner,
        }
        return cls._build(IndexStore, sources, out, settings, keywords, given)

    @classmethod
    def _build(
        cls,
        stores: StoreMaker,
        sources: Sources,
        out: str | Path | None,
        settings: BuildSettings | None,
        keywords: BuildKeywords,
        chosen: GivenToBuild,
    ) -> Self:
        """Build an index of the kind that ``stores`` makes."""
        from sbert_search.embed.pipeline import embed_batches
        from sbert_search.index.building.build import BuildKeywords, BuildSettings, build_index
        from sbert_search.index.building.given_vectors import refuse_model_options, split_vectors
        from sbert_search.index.building.read_settings import split_keywords

        _require_known(keywords, BuildKeywords)
        model = chosen["model"]
        settings, options = split_keywords(settings or BuildSettings(), keywords)
        given, fields = split_vectors(chosen["vectors"], settings.fields)
        settings = replace(settings, fields=fields)
        has_model = model is not None or not (given or fields.vector)
        if chosen["runner"] is not None and (given or fields.vector):
            raise ConfigError(
                "A runner embeds texts, but vectors are given, so no text is embedded; leave out "
                "the runner."
            )
        if not has_model:
            refuse_model_options(options)
        open_model = _opener(model, out, cast("EmbedderOptions", options), stores)
        build = partial(
            build_index,
            sources,
            open_model=open_model if has_model else None,
            settings=settings,
            vectors=given,
            memory_bytes=chosen["memory_bytes"],
            embed=chosen["runner"] or embed_batches,
            stores=stores,
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
        weakref.finalize(index, scratch.remove)
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
        **keywords: Unpack[BuildKeywords],
    ) -> Self:
        """Make an index without documents, to which `add`, `upsert` or `sync` can add them.

        Args:
            out: The new folder.
            model: As for `build`.
            dim: Dimension of the vectors, for an index without a model; its documents must be
                added with vectors. None: the index has a model.
            settings: As for `build`.
            keywords: As for `build`.

        Raises:
            ConfigError: A setting has a wrong value, or both a model and ``dim`` are given.
            TypeError: A keyword is unknown.
            IndexStoreError: The folder is not empty, or cannot become an index.
        """
        return cls(cls._create(IndexStore, out, model, dim, settings, keywords))

    @classmethod
    def _create(
        cls,
        stores: StoreMaker,
        out: str | Path,
        model: ModelLike | None,
        dim: int | None,
        settings: BuildSettings | None,
        keywords: BuildKeywords,
    ) -> IndexStore:
        """Make an empty index of the kind that ``stores`` makes."""
        from sbert_search.index.building.build import BuildKeywords, BuildSettings, create_empty
        from sbert_search.index.building.given_vectors import refuse_model_options
        from sbert_search.index.building.model_check import as_embedder
        from sbert_search.index.building.read_settings import split_keywords

        _require_known(keywords, BuildKeywords)
        settings, options = split_keywords(settings or BuildSettings(), keywords)
        if dim is None:
            embedder = as_embedder(model, **cast("EmbedderOptions", options))
            return create_empty(Path(out).absolute(), embedder, embedder.dim, settings, stores)
        if model is not None or not is_integer(dim) or dim < 1:
            raise ConfigError(
                f"dim is {dim!r}; it must be an integer of at least 1, and be given without a "
                "model. For an index with a model, leave out dim."
            )
        refuse_model_options(options)
        return create_empty(Path(out).absolute(), None, int(dim), settings, stores)

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

        For rows that have texts or metadata too, pass ``vectors`` to `build` or `from_texts`.

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
        from sbert_search.index.building.build import BuildKeywords, BuildSettings
        from sbert_search.index.building.given_vectors import refuse_model_options
        from sbert_search.index.building.id_vectors import build_from_vectors
        from sbert_search.index.building.read_settings import split_keywords
        from sbert_search.text.vectors import RowVectors

        _require_known(keywords, BuildKeywords)
        settings, options = split_keywords(BuildSettings(), keywords)
        if model is None:
            refuse_model_options(options)
        open_model = _opener(model, out, cast("EmbedderOptions", options))
        build = partial(
            build_from_vectors,
            RowVectors.open(Path(vectors) if isinstance(vectors, str) else vectors),
            ids,
            open_model=None if model is None else open_model,
            settings=settings,
        )
        return cls._built(build, out)

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
        from sbert_search.index.building.model_check import (
            as_embedder,
            require_agreement,
            require_model,
            with_kept_choices,
        )

        self.require_finished()
        require_model(self.identity, self.path)
        given = model is not None
        model = self.identity.name if model is None else model
        report = note if named else detail
        if quick and isinstance(model, (str, Path)) and (graph := self._by_graph(model, report)):
            return graph
        if isinstance(model, (str, Path)):
            options = with_kept_choices(model, options, self.state.manifest.settings)
        try:
            embedder = as_embedder(model, report=report, **options)
        except ModelError as error:
            if given:
                raise
            remedy = if_offered("--model", "name it with --model", "make a link to it there")
            raise ModelError(
                f"{error} The index was built with this model; if it lies elsewhere now, {remedy}."
            ) from error
        require_agreement(self.state.manifest.settings, embedder, allow_inexact=allow_inexact)
        return embedder

    def add(
        self,
        sources: Sources,
        *,
        model: ModelLike | None = None,
        vectors: VectorsLike | None = None,
        settings: ReadSettings | None = None,
        memory_bytes: int | None = None,
        **keywords: Unpack[ReadKeywords],
    ) -> IngestReport:
        """Add documents. A document whose id is already indexed with other content is a bad row.

        A document that is already indexed with the same content is skipped.

        Args:
            sources: Paths or rows, as for `build`.
            model: An embedder, a name or a folder; None: the model named in the index.
            vectors: Vectors that are indexed in place of those that the model would make, as for
                `build`. The model of the index must have made them; this is checked only for a
                column of a Parquet file that records its model. None: the vectors of the column
                that the build named; if it named none, the model makes the vectors.
            settings: Names of fields, and how to treat bad rows and long texts; None: as in the
                build, except that a bad row is an error.
            memory_bytes: Memory limit of the process in bytes, without memory-mapped files. None:
                no limit.
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
        return self._ingest("add", sources, model, vectors, settings, memory_bytes, keywords)

    def upsert(
        self,
        sources: Sources,
        *,
        model: ModelLike | None = None,
        vectors: VectorsLike | None = None,
        settings: ReadSettings | None = None,
        memory_bytes: int | None = None,
        **keywords: Unpack[ReadKeywords],
    ) -> IngestReport:
        """Add documents, and replace those whose id is indexed with other content.

        A given vector is part of the content: the same text with another vector replaces the
        document.

        Arguments and errors are those of `add`.
        """
        return self._ingest("upsert", sources, model, vectors, settings, memory_bytes, keywords)

    def sync(
        self,
        folder: str | Path,
        *,
        dry_run: bool = False,
        allow_empty: bool = False,
        moved: bool = False,
        model: ModelLike | None = None,
        settings: ReadSettings | None = None,
        memory_bytes: int | None = None,
        **keywords: Unpack[ReadKeywords],
    ) -> SyncReport:
        """Update the documents of a folder's files, so that they equal the files.

        New files are added, documents of changed files are replaced, and documents of removed files
        are deleted. Documents of other sources stay. Every file is read and compared by its hash.
        The model is opened only if there is a text to embed. If a sync is interrupted, the next
        call finishes it.

        Args:
            folder: The folder from which the index was built, or a folder below it. The first sync
                of an index that was built from other sources makes this folder its root.
            dry_run: Only report what would be done.
            allow_empty: Accept an absent or empty folder, and delete the documents of its files.
            moved: Whether ``folder`` is the root of the index at a new place.
            model: As for `add`.
            settings: As for `add`.
            memory_bytes: As for `add`.
            keywords: As for `add`, without ``fields``, ``on_error``, ``query`` and ``text_as``.

        Raises:
            ConfigError: A setting has a wrong value, or is one that a sync does not use.
            TypeError: A keyword is unknown.
            CorpusError: The folder is absent or holds no file that can be read.
            IndexStoreError: The folder lies outside the root of the index.
            ModelMismatch: The model is not the one that built the index.
            IndexLocked: Another process is writing.
        """
        from sbert_search.index.building.read_settings import ReadKeywords, split_keywords
        from sbert_search.index.building.sync import (
            require_files,
            require_place,
            scan_folder,
            sync_folder,
        )

        _require_known(keywords, ReadKeywords)
        if names := sorted(keywords.keys() & {"fields", "on_error", "query", "text_as"}):
            raise ConfigError(
                f"{', '.join(names)}: a sync reads each file of a folder as one document and "
                "reports files that cannot be read; leave these options out."
            )
        settings, rest = split_keywords(settings or self.read_settings, keywords)
        options = cast("CheckedOptions", rest)
        self.require_finished()
        started = time.perf_counter()
        scan = scan_folder(require_place(Path(folder), None if moved else self.root), memory_bytes)
        require_files(scan, allow_empty=allow_empty)
        report = sync_folder(
            self.store,
            scan,
            settings,
            partial(self._open_for, model, settings, options),
            dry_run=dry_run,
            allow_inexact=options.get("allow_inexact", False),
            memory_bytes=memory_bytes,
            settle=partial(_settle, memory_bytes=memory_bytes),
        )
        return replace(report, seconds=time.perf_counter() - started)

    def delete(self, ids: DocIds | None = None, *, where: str | None = None) -> int:
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
        doc_ids = [] if ids is None else id_texts(ids)
        with self.store.writer() as writer:
            self.require_finished()
            before = len(self)  # in the newest state, to which the writer has moved this object
            if where is not None:
                writer.delete_where(where)
            else:
                writer.delete(doc_ids)
            _settle(writer)
        return before - len(self)

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
        from sbert_search.index.tuning.settings import TuneSettings
        from sbert_search.text.labelled.retrieval import read_queries

        self.require_finished()
        settings = settings or TuneSettings()
        budget = settings.memory_bytes
        if budget is not None:
            memory.give_back_freed(budget)
            memory.require(budget, TUNING_BYTES + budget // 4, "Tuning")
        if queries is None:
            if names := sorted([*(["model"] if model is not None else []), *options]):
                raise ConfigError(
                    f"{', '.join(names)}: no model is opened, since documents of the index serve "
                    "as queries. Name a file of queries, or leave these options out."
                )
            return self._tune(settings, None, "documents", dry_run)
        embedder = self.matching_embedder(model, **options)
        asked = read_queries(Path(queries), memory_bytes=budget)
        vectors = embedder.encode_query([query.text for query in asked])
        origin = f"queries of {Path(queries).name}"
        return self._tune(settings, vectors, origin, dry_run)

    def _tune(
        self, settings: TuneSettings, queries: Floats | None, origin: str, dry_run: bool
    ) -> TuneReport:
        from sbert_search.index.tuning.tune import tune

        return tune(self.store, settings, queries, origin=origin, dry_run=dry_run)

    def _by_graph(self, model: str | Path, report: Callable[[str], None]) -> TextEmbedder | None:
        """Open a model's exported ONNX graph; if that is impossible, note why and return None."""
        from sbert_search.embed.engines.graph import require_graph
        from sbert_search.index.building.model_check import (
            as_embedder,
            require_agreement,
            require_same_model,
        )
        from sbert_search.models.loading.resolve import resolve_model

        if self.identity.engine not in ("native", "onnx"):
            return None
        settings = self.state.manifest.settings
        try:
            resolve_model(model)
        except ModelError:
            return None  # opening the model with torch then raises an error with the same reason
        try:
            require_graph(model)
            embedder = as_embedder(model, engine="onnx", report=report)
        except SbertSearchError as error:
            _note_torch(error)
            return None
        require_same_model(settings, embedder)  # an error, since torch would load the same model
        try:
            require_agreement(settings, embedder)
        except ModelMismatch as error:
            _note_torch(error)
            return None
        return embedder

    def _embedder_for(
        self,
        has_vectors: bool,
        may_embed: bool,
        model: ModelLike | None,
        settings: ReadSettings,
        options: CheckedOptions,
    ) -> TextEmbedder | None:
        """Return the embedder of new documents; None if it may not embed, as vectors are given.

        The embedder opens the model, and compares the model with the index, when the first text is
        embedded. If vectors are given, ``model`` is opened and compared at once.
        """
        from sbert_search.embed.delegation import LazyEmbedder
        from sbert_search.index.building.given_vectors import refuse_model_options

        embedder = LazyEmbedder(partial(self._open_for, model, settings, options))
        if not has_vectors:
            return embedder
        self.require_finished()
        if model is not None:
            self.matching_embedder(model, **options)
        elif not may_embed:
            refuse_model_options(options)
        return embedder if may_embed else None

    def _open_for(
        self, model: ModelLike | None, settings: ReadSettings, options: CheckedOptions
    ) -> TextEmbedder:
        from sbert_search.index.building.model_check import require_mixable

        embedder = self.matching_embedder(model, **options)
        require_mixable(self.state.settings, embedder)
        settings.chunking(embedder)
        return embedder

    def _ingest(
        self,
        mode: Mode,
        sources: Sources,
        model: ModelLike | None,
        vectors: VectorsLike | None,
        settings: ReadSettings | None,
        memory_bytes: int | None,
        keywords: ReadKeywords,
    ) -> IngestReport:
        from sbert_search.index.building.build import note_resume_on_interrupt
        from sbert_search.index.building.given_vectors import split_vectors, vector_rule
        from sbert_search.index.building.ingest import ingest, note_columns, require_memory
        from sbert_search.index.building.model_check import require_model
        from sbert_search.index.building.read_settings import ReadKeywords, split_keywords
        from sbert_search.text.documents import CorpusReader

        _require_known(keywords, ReadKeywords)
        settings, rest = split_keywords(settings or self.read_settings, keywords)
        options = cast("CheckedOptions", rest)
        given, fields = split_vectors(vectors, settings.fields)
        settings, stored = replace(settings, fields=fields), self.state.settings
        has_vectors = given is not None or fields.vector is not None
        if not has_vectors:
            require_model(self.identity, self.path)
        kept = self.read_settings.fields
        may_embed = has_vectors and given is None and fields.vector == kept.vector
        if may_embed and not self.identity.is_model:
            kept, may_embed = replace(kept, vector=None), False  # each row needs a vector
        require_memory(memory_bytes)
        reader = CorpusReader(
            sources,
            fields=settings.fields,
            metadata_fields=settings.metadata_fields,
            column_types=settings.column_types,
            query=settings.query,
            on_error=settings.on_error,
            columns=self.state.columns,
            widens=self.state.widens,
            memory_bytes=memory_bytes,
            vectors=given,
            vector_rule=vector_rule(stored.metric, stored.dtype, stored.dim),
            root=self.root,
            text_as=settings.text_as,
            stored=kept,
        )
        predicted = settings.predicted
        survey = predicted.survey(reader.survey(), self.state.columns)
        if fields.vector is not None:
            from sbert_search.index.building.parquet import require_recorded_models

            remedy = f"Give vectors that {self.identity.name} made, or the texts without vectors."
            require_recorded_models(reader.paths, fields.vector, self.identity, remedy)
        embedder = self._embedder_for(has_vectors, may_embed, model, settings, options)
        with note_resume_on_interrupt(self.store), self.store.writer() as writer:
            self.require_finished()
            note_columns(writer.snapshot, survey.columns)
            writer.add_columns(survey.columns)
            report = ingest(
                writer,
                reader,
                embedder,
                survey=survey,
                mode=mode,
                on_truncate=settings.on_truncate,
                chunking=settings.chunking(None),
                memory_bytes=memory_bytes,
                finish=partial(_settle, writer, memory_bytes),
                by_time=True,
                predicted=predicted,
            )
        return report


def _note_torch(error: SbertSearchError) -> None:
    note(f"Loading torch, which takes seconds, as no ONNX graph of the model is used: {error}")


def _opener(
    model: ModelLike | None,
    out: str | Path | None,
    options: EmbedderOptions,
    stores: StoreMaker = IndexStore,
) -> Callable[[], TextEmbedder]:
    """Return a function that opens the model of a build into the folder ``out``.

    If ``out`` has an unfinished build, its precision and batch size replace "auto" in the options.
    """
    from sbert_search.index.building.build import open_for_build
    from sbert_search.index.building.model_check import as_embedder

    opened = partial(as_embedder, model)
    if out is not None and (model is None or isinstance(model, (str, Path))):
        return partial(open_for_build, Path(out), model, opened, stores=stores, **options)
    return partial(opened, **options)


def _require_known(keywords: Mapping[str, object], known: type) -> None:
    for name in keywords.keys() - known.__annotations__.keys():
        raise TypeError(unknown_name(name, name, known.__annotations__, "keyword"))


def _settle(writer: IndexWriter, memory_bytes: int | None = None) -> None:
    """Merge segments after an update; if that fails, warn, since the update is committed."""
    try:
        writer.settle(memory_bytes=memory_bytes)
    except SbertSearchError as error:
        warn(
            f"The update is committed, but merging segments after it failed: {error} "
            f"Remove the cause, then run `sbert-search index compact {writer.path}`."
        )
