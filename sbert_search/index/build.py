"""Building an index from a source; a build that was stopped goes on where its last commit ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sbert_search.corpus.documents import CorpusReader, Survey
from sbert_search.embedding.embedder import Embedder
from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.errors import IndexStoreError, NotAnIndex
from sbert_search.index import ann_build
from sbert_search.index.agreement import require_agreement, self_check
from sbert_search.index.ingest import IngestReport, ReadSettings, ingest, require_memory
from sbert_search.index.lexical_terms import LexicalSettings
from sbert_search.index.manifest import BuildCursor, Manifest, Metric, StoreSettings, VectorType
from sbert_search.index.repeats import refuse_repeats
from sbert_search.index.spec import IndexSpec
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import SEGMENT_ROWS
from sbert_search.runtime.progress import note
from sbert_search.runtime.same_file import require_apart

Sources = str | Path | Sequence[str | Path]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSettings(ReadSettings):
    """How to make an index of a source.

    Attributes:
        metric: How vectors compare.
        dtype: How vectors are stored.
        spec: How vectors are searched.
        lexical: What a word is and how words score; None: an index for dense search alone.
    """

    metric: Metric = "cosine"
    dtype: VectorType = "float32"
    spec: IndexSpec = IndexSpec()  # noqa: RUF009 (frozen)
    lexical: LexicalSettings | None = field(default_factory=LexicalSettings)


def build_index(
    sources: Sources,
    out: Path,
    open_model: Callable[[], TextEmbedder],
    settings: BuildSettings,
    *,
    memory_bytes: int | None = None,
) -> IngestReport:
    """Make an index, or finish making it.

    Everything that can be wrong with the folder and the rows is found before the model is loaded
    and before anything is written. A rerun after a kill with the same source, settings and model
    goes on at the last commit, and ends with the index that an uninterrupted run makes; with
    others it starts over.

    Args:
        sources: What to read.
        out: The folder to make; absent, empty, or an unfinished build.
        open_model: Loads the model.
        settings: How to make it.
        memory_bytes: What the process may take, mapped files not counted; None: no limit.

    Raises:
        ConfigError: The index that the spec asks for would not fit the budget, or the vectors; or
            ``out`` is a source.
        CorpusError: A source cannot be read, or holds a bad row and settings say to stop at those.
        IndexStoreError: The folder cannot become an index, or holds a finished one.
    """
    _refuse_finished(out)
    require_memory(memory_bytes)
    reader = CorpusReader(
        source_list(sources),
        fields=settings.fields,
        on_error=settings.on_error,
        memory_bytes=memory_bytes,
    )
    require_apart(out, reader.paths)
    survey = reader.survey()
    if settings.on_error == "stop":
        refuse_repeats(reader)
    embedder = open_model()
    require_memory(memory_bytes)
    fixed = StoreSettings(
        dim=embedder.dim,
        metric=settings.metric,
        dtype=settings.dtype,
        identity=_identity(embedder),
        self_check=self_check(embedder),
        spec=settings.spec,
        lexical=settings.lexical,
    )
    ann_build.require_possible(fixed)
    ann_build.require_memory(fixed, min(survey.rows, SEGMENT_ROWS), memory_bytes)
    start = BuildCursor(source_sha256=survey.sha256, rows=0, settings=settings.kept())
    store = _create_or_resume(out, fixed, start, survey)
    with told_how_to_go_on(store), store.writer() as writer:
        if not _same_work(writer.snapshot.manifest, fixed, start):
            note(
                f"{out}: an unfinished build of another source, or with other settings or another "
                "model; starting over."
            )
            writer.start_over(fixed, survey.columns, build=start)
        cursor = writer.snapshot.manifest.build or start
        if cursor.rows:
            require_agreement(writer.snapshot.manifest.settings, embedder)
            note(f"{out}: going on at row {cursor.rows:,} of {survey.rows:,}.")
        report = ingest(
            writer,
            reader,
            embedder,
            survey=survey,
            mode="add",
            on_truncate=settings.on_truncate,
            cursor=cursor,
            memory_bytes=memory_bytes,
            finish=partial(writer.finish_build, memory_bytes=memory_bytes),
        )
    if isinstance(embedder, Embedder):
        embedder.keep_graph()
    return report


def source_list(sources: Sources) -> list[str | Path]:
    """Make a list of one source or several."""
    return [sources] if isinstance(sources, (str, Path)) else list(sources)


@contextmanager
def told_how_to_go_on(store: IndexStore) -> Iterator[None]:
    """Add to an interrupt what is in the index by then, for whoever shows it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        n_docs = store.snapshot.n_docs
        interrupt.add_note(
            f"{store.path} is sound and holds {n_docs:,} documents; "
            "the same command goes on from there."
        )
        raise


def _refuse_finished(out: Path) -> None:
    """Find out what is wrong with the target before any time is spent."""
    try:
        build = IndexStore.open(out).snapshot.manifest.build
    except NotAnIndex:
        return
    if build is None or build.finished:
        raise IndexStoreError(
            f"{out} already holds a finished index. Use `index add` or `index upsert` to change "
            "it, name another folder, or remove this one."
        )


def _create_or_resume(
    out: Path, fixed: StoreSettings, start: BuildCursor, survey: Survey
) -> IndexStore:
    try:
        return IndexStore.open(out)
    except NotAnIndex:
        return IndexStore.create(out, fixed, survey.columns, build=start)


def _same_work(manifest: Manifest, fixed: StoreSettings, start: BuildCursor) -> bool:
    """Whether an unfinished build is of the same source, with the same settings and model."""
    build = manifest.build or start
    return (
        build.source_sha256 == start.source_sha256
        and build.settings == start.settings
        and replace(manifest.settings, self_check=fixed.self_check) == fixed
    )


def _identity(embedder: TextEmbedder) -> Mapping[str, Any]:
    """Describe the model; a folder by its absolute path, for searches from elsewhere."""
    identity = embedder.identity
    if Path(identity.name).is_dir():
        identity = replace(identity, name=str(Path(identity.name).resolve()))
    return identity.to_mapping()
