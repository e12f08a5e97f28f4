"""An index as its user sees it: documents in, documents out, kept healthy."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from sbert_search.config import from_mapping
from sbert_search.corpus.beir import read_queries
from sbert_search.corpus.documents import CorpusReader
from sbert_search.embedding.arguments import CheckedOptions, EmbedderOptions, ModelLike
from sbert_search.embedding.graph import require_graph
from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.errors import IndexStoreError, QueryError, SbertSearchError
from sbert_search.index.ingestion.build import (
    BuildSettings,
    Sources,
    build_index,
    note_resume_on_interrupt,
    source_list,
)
from sbert_search.index.ingestion.ingest import (
    IngestReport,
    Mode,
    ReadSettings,
    ingest,
    require_memory,
)
from sbert_search.index.ingestion.model_check import as_embedder, require_agreement
from sbert_search.index.lexical_settings import LexicalSettings
from sbert_search.index.maintenance import compaction
from sbert_search.index.maintenance.check import CheckReport, check
from sbert_search.index.maintenance.drift import DriftReport, measure_drift
from sbert_search.index.maintenance.info import IndexInfo, describe
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.store import IndexStore
from sbert_search.index.writer import IndexWriter
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.runtime import memory
from sbert_search.runtime.disk.same_file import require_apart
from sbert_search.runtime.progress import note

if TYPE_CHECKING:
    from sbert_search.index.tuning.settings import TuneSettings
    from sbert_search.index.tuning.tune import TuneReport

TUNING_BYTES = 64 << 20  # beside the sample: queries, their neighbours, blocks of a scan


class Index:
    """An index on disk with the name of the model that built it.

    Reading sees one immutable state. `add`, `upsert`, `delete` and `compact` move this object to
    the state they leave. What another process, or another `Index` of the same folder, has committed
    is seen after `refresh`.
    """

    def __init__(self, store: IndexStore) -> None:
        self.store = store

    @classmethod
    def open(cls, path: str | Path, *, wait_s: float = 0.0) -> Index:
        """Open an index, verified.

        Args:
            path: The folder.
            wait_s: How long what changes it waits for another process that does.

        Raises:
            NotAnIndex: The folder holds none.
            CorruptIndex: A file differs from what was committed.
        """
        return cls(IndexStore.open(path, wait_s=wait_s))

    @classmethod
    def build(
        cls,
        sources: Sources,
        *,
        out: str | Path,
        model: ModelLike | None = None,
        settings: BuildSettings | None = None,
        memory_bytes: int | None = None,
        **options: Unpack[EmbedderOptions],
    ) -> Index:
        """Make an index of files, folders or globs; goes on where a stopped build was.

        Args:
            sources: What to read.
            out: The folder to make.
            model: A model's name or folder, an `Embedder` or a ``SentenceTransformer``.
            settings: Metric, precision, fields and the like.
            memory_bytes: What the process may take, mapped files not counted; None: no limit.
            options: How to open a model by name: ``device``, ``engine``, ``precision``.

        Raises:
            ConfigError: The index that the spec asks for would not fit the budget.
            CorpusError: A source cannot be read or holds a bad row.
            IndexStoreError: The folder cannot become an index, or holds a finished one.
        """
        open_model = partial(as_embedder, model, **options)
        settings = settings or BuildSettings()
        build_index(sources, Path(out), open_model, settings, memory_bytes=memory_bytes)
        return cls.open(out)

    @property
    def path(self) -> Path:
        """The folder."""
        return self.store.path

    @property
    def state(self) -> Snapshot:
        """The state that reading sees."""
        return self.store.snapshot

    @property
    def read_settings(self) -> ReadSettings:
        """How the documents of its build were read and embedded; bad rows stop."""
        build = self.state.manifest.build
        settings = from_mapping(ReadSettings, build.settings) if build else ReadSettings()
        return replace(settings, on_error="stop")

    @property
    def identity(self) -> ModelIdentity:
        """The model that built the index."""
        return ModelIdentity.from_mapping(self.state.manifest.settings.identity)

    def __len__(self) -> int:
        return self.state.n_docs

    def refresh(self) -> bool:
        """Move to the newest committed state, which every `SearchEngine` of this index then sees.

        Searches that are under way end on the state that they began with. Only files that are new
        are opened; where nothing was committed, only the manifest is read.

        Returns:
            Whether there was a newer state.

        Raises:
            NotAnIndex: The folder no longer holds an index.
            CorruptIndex: A file differs from what was committed.
            IndexStoreError: The folder now holds an index of another model or metric.
        """
        before = self.state
        moved = self.store.refresh()
        settings = self.state.settings
        for name in ("identity", "metric"):
            if getattr(settings, name) != getattr(before.settings, name):
                self.store.snapshot = before
                raise IndexStoreError(
                    f"{self.path} now holds another index: its {name} is not that of the index "
                    "that was opened. Open it anew."
                )
        return moved

    def require_finished(self) -> None:
        """Refuse an index whose build is not complete.

        Raises:
            IndexStoreError: It is not.
        """
        build = self.state.manifest.build
        if build is not None and not build.finished:
            raise IndexStoreError(
                f"{self.path} is an unfinished build ({build.rows:,} rows are done). Run its "
                "`index build` command again: it goes on from there."
            )

    def matching_embedder(
        self,
        model: ModelLike | None = None,
        *,
        allow_inexact: bool = False,
        quick: bool = False,
        **options: Unpack[EmbedderOptions],
    ) -> TextEmbedder:
        """Open the model of this index, or check that another one is the same.

        Args:
            model: A name, a folder or an embedder; None: the model that the index names.
            allow_inexact: Accept an engine or precision that moves vectors further than allowed.
            quick: Take the model's exported graph where the cache has it and it agrees with the
                index; it is open in a fraction of a second, and slower over many texts.
            options: How to open a model by name: ``device``, ``engine``, ``precision``.

        Raises:
            ModelMismatch: It is another model.
            IndexStoreError: The index is an unfinished build.
        """
        self.require_finished()
        model = self.identity.name if model is None else model
        if quick and isinstance(model, (str, Path)) and (graph := self._by_graph(model)):
            return graph
        embedder = as_embedder(model, **options)
        require_agreement(self.state.manifest.settings, embedder, allow_inexact=allow_inexact)
        return embedder

    def add(
        self,
        sources: Sources,
        *,
        model: ModelLike | None = None,
        settings: ReadSettings | None = None,
        memory_bytes: int | None = None,
        **options: Unpack[CheckedOptions],
    ) -> IngestReport:
        """Add documents; one whose id is there with other content is a bad row.

        Args:
            sources: What to read.
            model: An embedder, a name or a folder; None: the model that the index names.
            settings: Fields, and what to do with bad rows and long texts; None: as when
                the index was built.
            memory_bytes: What the process may take, mapped files not counted; None: no limit.
            options: As for `matching_embedder`.

        Raises:
            CorpusError: A source cannot be read or holds a bad row; what was committed before it
                stays, and the same call goes on after it.
            ModelMismatch: It is another model than the one that built the index.
            IndexLocked: Another process writes.
        """
        return self._ingest("add", sources, model, settings, memory_bytes, options)

    def upsert(
        self,
        sources: Sources,
        *,
        model: ModelLike | None = None,
        settings: ReadSettings | None = None,
        memory_bytes: int | None = None,
        **options: Unpack[CheckedOptions],
    ) -> IngestReport:
        """Add documents, and replace those whose id is there with other content; as `add`."""
        return self._ingest("upsert", sources, model, settings, memory_bytes, options)

    def delete(self, ids: Iterable[str] | None = None, *, where: str | None = None) -> int:
        """Delete documents by id or by a filter over the metadata, in one commit.

        Returns:
            How many there were; ids that are not there are passed over.

        Raises:
            QueryError: Neither or both are given, or the filter is wrong.
            IndexLocked: Another process writes.
        """
        if (ids is None) == (where is None):
            raise QueryError("Say what to delete: either ids or a filter (where).")
        with self.store.writer() as writer:
            self.require_finished()
            before = len(self)  # of the newest state, which others may have written
            if where is not None:
                writer.delete_where(where)
            else:
                writer.delete(list(ids or ()))
            _settle(writer)
        return before - len(self)

    def info(self) -> IndexInfo:
        """Say what the index holds and what made it."""
        return describe(self.state)

    def check(self) -> CheckReport:
        """Read and verify every byte."""
        return check(self.path)

    def drift(self, target: float | None = None) -> DriftReport:
        """Say how far updates have moved the index from what it was built for; see `drift`."""
        return measure_drift(self.state, target)

    def repair(self) -> list[str]:
        """Drop damaged derived files and files that nothing refers to; make the former again.

        Returns:
            Names of the files dropped.
        """
        with self.store.writer() as writer:
            return writer.repair()

    def compact(self, *, memory_bytes: int | None = None, retrain: bool = False) -> None:
        """Rewrite the segments without dead rows, with the FAISS files that are missing.

        Args:
            memory_bytes: What FAISS may take; None: no limit.
            retrain: Train FAISS anew on what the index now holds, and make all its files again.

        Raises:
            ConfigError: A FAISS index would not fit the budget, or the rows that are merged.
        """
        memory.give_back_freed(memory_bytes)
        memory.require(memory_bytes, compaction.WORK_BYTES, "Compaction")
        with self.store.writer() as writer:
            writer.compact(memory_bytes=memory_bytes, retrain=retrain)

    def tune(
        self,
        settings: TuneSettings | None = None,
        *,
        queries: str | Path | None = None,
        dry_run: bool = False,
        model: ModelLike | None = None,
        **options: Unpack[CheckedOptions],
    ) -> TuneReport:
        """Choose how the vectors are searched by measuring, and search them so from now on.

        Args:
            settings: Recall, memory, latency and time; None: recall@10 of 0.95 within ten minutes.
            queries: A file of queries such as will be asked; None: the documents themselves.
            dry_run: Measure on a sample and change nothing.
            model: What embeds the queries, as for `matching_embedder`.
            options: As for `matching_embedder`.

        Raises:
            ConfigError: The process has no room for the work within its budget.
            IndexStoreError: Nothing keeps within the budget; the index is as it was.
            CorpusError: The queries cannot be read.
            IndexLocked: Another process writes.
        """
        from sbert_search.index.tuning.settings import TuneSettings
        from sbert_search.index.tuning.tune import tune

        self.require_finished()
        settings = settings or TuneSettings()
        budget = settings.memory_bytes
        if budget is not None:
            memory.give_back_freed(budget)
            memory.require(budget, TUNING_BYTES + budget // 4, "Tuning")
        if queries is None:
            return tune(self.store, settings, dry_run=dry_run)
        embedder = self.matching_embedder(model, **options)
        asked = read_queries(Path(queries), memory_bytes=budget)
        vectors = embedder.encode_query([query.text for query in asked])
        origin = f"queries of {Path(queries).name}"
        return tune(self.store, settings, vectors, origin=origin, dry_run=dry_run)

    def set_lexical(self, settings: LexicalSettings | None) -> None:
        """Add the data of search by words, change their settings, or drop them (None)."""
        with self.store.writer() as writer:
            self.require_finished()
            writer.set_lexical(settings)

    def backup(self, target: str | Path) -> None:
        """Copy the newest state to a new folder, by hard links where both are on one disk.

        Raises:
            ConfigError: The target lies in this index.
            IndexStoreError: The target exists already, or cannot be written.
        """
        require_apart(Path(target), [self.path], "The backup")
        self.store.backup_to(target)

    def snapshot(self, target: str | Path) -> None:
        """Do as `backup`, whose old name this is.

        .. deprecated:: 0.2
            Use `backup`; this name goes with 0.3.
        """
        warnings.warn("Index.snapshot is now Index.backup.", DeprecationWarning, stacklevel=2)
        self.backup(target)

    def _by_graph(self, model: str | Path) -> TextEmbedder | None:
        """Open a model by its graph; None, and a note why, when that cannot be."""
        if self.identity.engine not in ("native", "onnx"):
            return None
        try:
            require_graph(model)
            embedder = as_embedder(model, engine="onnx")
            require_agreement(self.state.manifest.settings, embedder)
        except SbertSearchError as error:
            note(f"Loading torch, which takes seconds: {error}")
            return None
        return embedder

    def _ingest(
        self,
        mode: Mode,
        sources: Sources,
        model: ModelLike | None,
        settings: ReadSettings | None,
        memory_bytes: int | None,
        options: CheckedOptions,
    ) -> IngestReport:
        settings = settings or self.read_settings
        require_memory(memory_bytes)
        reader = CorpusReader(
            source_list(sources),
            fields=settings.fields,
            on_error=settings.on_error,
            columns=self.state.columns,
            widens=self.state.widens,
            memory_bytes=memory_bytes,
        )
        survey = reader.survey()
        embedder, agreed = self.matching_embedder(model, **options), self.state.settings
        with note_resume_on_interrupt(self.store), self.store.writer() as writer:
            self.require_finished()
            if writer.snapshot.settings != agreed:  # another index has taken the place of this one
                inexact = bool(options.get("allow_inexact"))
                require_agreement(writer.snapshot.settings, embedder, allow_inexact=inexact)
            writer.add_columns(survey.columns)
            report = ingest(
                writer,
                reader,
                embedder,
                survey=survey,
                mode=mode,
                on_truncate=settings.on_truncate,
                memory_bytes=memory_bytes,
                finish=partial(_settle, writer, memory_bytes),
            )
        return report


def _settle(writer: IndexWriter, memory_bytes: int | None = None) -> None:
    """Keep the index in shape after an update, which stands whatever becomes of this."""
    try:
        writer.settle(memory_bytes=memory_bytes)
    except SbertSearchError as error:
        note(
            f"The update is committed, but tidying up after it failed: {error} "
            f"Run `sbert-search index compact {writer.path}` when that is mended."
        )
