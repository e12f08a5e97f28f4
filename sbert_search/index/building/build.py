"""Building an index from sources; an interrupted build resumes after its last commit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Unpack, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.folders import require_apart
from sbert_search.base.options import if_offered, worded
from sbert_search.base.progress import note
from sbert_search.config import is_integer, require_known, to_mapping
from sbert_search.embed.arguments import EmbedderOptions, ModelLike
from sbert_search.embed.embedder import Embedder
from sbert_search.embed.pipeline import EmbedBatches, embed_batches
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, IndexStoreError, NotAnIndex
from sbert_search.index.building.given_vectors import (
    dim_of,
    no_model,
    refuse_model_options,
    split_vectors,
    vector_rule,
)
from sbert_search.index.building.ingest import IngestReport, ingest, listed, require_memory
from sbert_search.index.building.model_check import (
    as_embedder,
    require_agreement,
    require_mixable,
    self_check,
    stored_identity,
    unrelated_cosine,
    with_kept_choices,
)
from sbert_search.index.building.parquet import require_recorded_models
from sbert_search.index.building.settings import BuildKeywords as BuildKeywords
from sbert_search.index.building.settings import BuildSettings as BuildSettings
from sbert_search.index.building.settings import ReadSettings, reader_of, split_keywords
from sbert_search.index.dense import faiss_build
from sbert_search.index.settings import NO_LANGUAGE, LexicalSettings, likely_language
from sbert_search.index.shards.manifest import require_shard_count
from sbert_search.index.storage.ids import hash_contents, hash_ids
from sbert_search.index.storage.manifest import (
    BuildCursor,
    Manifest,
    SelfCheck,
    VectorSettings,
)
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.merge_policy import SEGMENT_ROWS
from sbert_search.index.writer import IndexWriter
from sbert_search.models.encoder.config import flops_per_token
from sbert_search.models.encoder.layouts import known_settings
from sbert_search.models.loading.resolve import PACKAGED_NAMES
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader, ReadBatch, Reject, Survey
from sbert_search.text.spool import ROWS, Sources
from sbert_search.text.tokens.tokenizer import NO_LIMIT
from sbert_search.text.vectors import RowVectors, VectorsLike


def refuse_conflicting_ids(reader: CorpusReader) -> None:
    """Read all documents and refuse an id with two contents.

    The first read finds id hashes that occur with two content hashes. Different ids can have the
    same hash, so a second read compares the contents of documents with the same id. The hashes take
    about 45 bytes of memory per document while they are sorted.
    """
    suspects = set(_ids_with_two_contents(*_hashes(reader)).tolist())
    first: dict[str, tuple[Document, np.uint64]] = {}
    for batch in reader.batches() if suspects else ():
        hashes = zip(_id_hashes(batch.documents), _content_hashes(batch), strict=True)
        for document, (id_hash, content) in zip(batch.documents, hashes, strict=True):
            if int(id_hash) in suspects:
                known, first_content = first.setdefault(document.doc_id, (document, content))
                if content != first_content:
                    reason = f"the id also occurs in {known.source}, with other content"
                    skip = "Make ids unique, or pass --on-error skip to keep the first of them."
                    remedy = if_offered("--on-error", skip, "Make ids unique.")
                    raise Reject(document.source, reason, document.doc_id).error(remedy)


def _hashes(reader: CorpusReader) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Hash the id and the content of every document, each uint64 (n_docs,)."""
    ids, contents = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for batch in reader.batches():
        ids.append(_id_hashes(batch.documents))
        contents.append(_content_hashes(batch))
    return np.concatenate(ids), np.concatenate(contents)


def _id_hashes(documents: list[Document]) -> NDArray[np.uint64]:
    return hash_ids([document.doc_id for document in documents])


def _content_hashes(batch: ReadBatch) -> NDArray[np.uint64]:
    return hash_contents(batch.documents, batch.vectors)


def _ids_with_two_contents(
    ids: NDArray[np.uint64], contents: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    order = np.lexsort((contents, ids))
    ids, contents = ids[order], contents[order]
    twice: NDArray[np.uint64] = ids[1:][(ids[1:] == ids[:-1]) & (contents[1:] != contents[:-1])]
    return twice


def build_with_model(
    sources: Sources,
    out: Path,
    model: ModelLike | None,
    vectors: VectorsLike | None,
    settings: BuildSettings | None,
    keywords: BuildKeywords,
    *,
    runner: EmbedBatches | None = None,
    n_shards: int | None = None,
) -> IngestReport:
    """Build an index, with the model that is named or open; see `Index.build`."""
    require_known(keywords, BuildKeywords)
    settings, rest = split_keywords(settings or BuildSettings(), keywords)
    options = cast("EmbedderOptions", rest)
    given, fields = split_vectors(vectors, settings.fields)
    has_vectors = given is not None or fields.vector is not None
    open_model: Callable[[], TextEmbedder] | None = None
    if model is not None or not has_vectors:
        open_model = model_opener(model, out, options, n_shards)
    else:
        refuse_model_options(options)
    if runner is not None and has_vectors:
        raise ConfigError(
            "A runner embeds texts, but vectors are given, so no text is embedded; leave out the "
            "runner."
        )
    return build_index(
        sources,
        out,
        open_model,
        replace(settings, fields=fields),
        vectors=given,
        embed=runner or embed_batches,
        n_shards=n_shards,
    )


def build_index(
    sources: Sources,
    out: Path,
    open_model: Callable[[], TextEmbedder] | None,
    settings: BuildSettings,
    *,
    vectors: RowVectors | None = None,
    embed: EmbedBatches = embed_batches,
    n_shards: int | None = None,
) -> IngestReport:
    """Build an index, or resume an interrupted build.

    The folder and all rows are checked before the model is loaded and before anything is written. A
    second run with the same sources, settings and model resumes after the last commit, and ends
    with the same index as an uninterrupted run. A run with other sources, settings or another model
    is refused, unless no document was committed yet. If the folder holds the finished index of the
    same sources, settings and model, nothing is done: all its rows count as duplicates.

    ``open_model`` is None if vectors are given and the index has no model. ``vectors`` are the
    vectors to index, one for each row; None: those of the field that ``settings`` names, or of the
    model.
    """
    given = vectors is not None or settings.fields.vector is not None
    finished = _finished(out, n_shards)
    built = None if finished is None else _require_as_built(out, finished)
    shown, out = out, out.absolute()
    require_memory()
    reader = reader_of(
        settings,
        sources,
        vectors=vectors,
        vector_rule=vector_rule(settings.metric, settings.dtype),
    )
    require_apart(out, reader.paths)
    survey = reader.survey()
    if built is not None and built.source_sha256 != survey.sha256:
        raise _already_built(shown, "made of another source")
    table = reader.numbered
    if built is None and survey.columns and table not in (None, ROWS):
        columns = listed(list(survey.columns))
        note(
            f"{table} has no id field, so the number of a row is its id, which changes when rows "
            f"are inserted or deleted. If a column ({columns}) identifies a row, name it with "
            f"{worded('--id-field', 'FieldNames(id=...)')}."
        )
    texts = settings.fields.texts
    if built is None and len(texts) > 1 and settings.metadata_fields is None:
        note(
            f"{listed(texts)} are texts and no columns. To filter, sort or count by one, name it "
            f"and the other columns in {worded('--metadata-fields', 'metadata_fields')}, too."
        )
    if settings.on_error == "stop":
        refuse_conflicting_ids(reader)
    predicted = settings.predicted
    survey = predicted.survey(survey)
    settings = replace(settings, predicted_by=predicted.hashes)
    first = islice(reader.batches(), 1)
    full = (document.full_text for batch in first for document in batch.documents)
    settings = in_likely_language(settings, full)
    if open_model is not None and settings.fields.vector is not None:
        open_model = partial(_opened_as_recorded, open_model, reader.paths, settings.fields.vector)

    def write(
        writer: IndexWriter, embedder: TextEmbedder | None, cursor: BuildCursor
    ) -> IngestReport:
        return ingest(
            writer,
            reader,
            None if given else embedder,
            survey=survey,
            mode="add",
            on_truncate=settings.on_truncate,
            chunking=settings.chunking(embedder),
            cursor=cursor,
            finish=writer.finish_build,
            by_time=True,
            predicted=predicted,
            embed=embed,
        )

    return build_from(
        survey,
        out,
        open_model,
        settings,
        write,
        root=reader.root,
        n_shards=n_shards,
    )


def in_likely_language(settings: BuildSettings, texts: Iterable[str]) -> BuildSettings:
    """Set the language of texts for lexical search, unless the settings name one."""
    lexical = settings.lexical
    if settings.language is not None or lexical is None or lexical != LexicalSettings():
        return settings
    language = likely_language(texts)
    if language == lexical.language:
        return settings
    remedy = worded("; name another one with --language", "; name another one by language=...")
    note(
        f"Most words look {language.capitalize()}, so lexical search uses the stems and stop words "
        f"of that language{if_offered('--language', remedy)}."
    )
    return replace(settings, language=language)


def _note_english_model(settings: BuildSettings, embedder: TextEmbedder | None) -> None:
    """Say that the default model is for English if the language of the texts is another one."""
    language = settings.lexical.language if settings.lexical else NO_LANGUAGE
    if embedder is None or language in ("english", "porter", NO_LANGUAGE):
        return
    if embedder.identity.name in PACKAGED_NAMES:
        other = worded(
            "`--model intfloat/multilingual-e5-small --query-prompt 'query: ' --document-prompt "
            "'passage: '`",
            'model="intfloat/multilingual-e5-small", prompts={"query": "query: ", "document": '
            '"passage: "}',
        )
        note(
            f"The default model is for English. To search {language.capitalize()} by meaning, "
            f"choose a model of many languages, such as {other}."
        )


def _opened_as_recorded(
    open_model: Callable[[], TextEmbedder], paths: Sequence[Path], field: str
) -> TextEmbedder:
    """Open the model of given vectors; refuse it if a file records another model for them."""
    embedder = open_model()
    require_recorded_models(paths, field, embedder.identity)
    return embedder


def build_from(
    survey: Survey,
    out: Path,
    open_model: Callable[[], TextEmbedder] | None,
    settings: BuildSettings,
    write: Callable[[IndexWriter, TextEmbedder | None, BuildCursor], IngestReport],
    *,
    root: Path | None = None,
    n_shards: int | None = None,
) -> IngestReport:
    """Build an index from a surveyed source, or resume a build of it; see `build_index`.

    ``write`` writes the rows after the cursor, and finishes the build. ``root`` is the folder to
    which ids are relative paths; None: ids are not paths of files.
    """
    finished = _finished(out, n_shards)
    embedder = open_model() if open_model else None
    _note_english_model(settings, embedder)
    settings.chunking(embedder)  # refuses a size that the model cannot read
    require_memory()
    fixed = vector_settings(settings, embedder, dim_of(survey.dim, embedder))
    faiss_build.require_possible(fixed)
    faiss_build.require_memory(fixed, min(survey.rows, SEGMENT_ROWS))
    start = BuildCursor(
        source_sha256=survey.sha256,
        rows=0,
        settings=settings.stored_values(),
        root=str(root) if root else None,
    )
    empty = Manifest.new(fixed, survey.columns, lexical=settings.lexical, build=start)
    if finished is not None:
        return _built_before(out, finished, empty)
    store = _create_or_resume(out, empty, n_shards)
    with note_resume_on_interrupt(store), store.writer() as writer:
        _take_over(writer, empty)
        cursor = writer.snapshot.manifest.build or start
        if cursor.rows:
            if embedder:
                stored = writer.snapshot.manifest.settings
                require_agreement(stored, embedder, allow_inexact=None)
                require_mixable(stored, embedder)
            note(f"{out}: resuming at row {cursor.rows:,} of {survey.rows:,}.")
        elif embedder and survey.dim is None:
            _note_long_passages(embedder, settings)
        return write(writer, embedder, cursor)


_SHORT = 512  # tokens that most models read


def _note_long_passages(embedder: TextEmbedder, settings: BuildSettings) -> None:
    """Say what passages cost that are as long as a model of long texts reads."""
    longest, cost = embedder.max_len, ""
    if longest < 2 * _SHORT or settings.chunk_tokens or settings.on_truncate != "chunk":
        return
    folder = embedder.opened.folder if isinstance(embedder, Embedder) else None
    if folder is not None and (config := known_settings(folder.transformer)) is not None:
        times = flops_per_token(config, longest) / flops_per_token(config, _SHORT)
        cost = f"; per token, these take {times:.1f} times the work of passages of {_SHORT} tokens"
    reads = f"{longest:,} tokens, so a passage has up to {longest:,}, and one vector{cost}"
    if longest >= NO_LIMIT:
        reads = "texts of any length, so each has one vector"
    note(
        f"{embedder.identity.name} reads {reads}. --chunk-tokens {_SHORT} (chunk_tokens={_SHORT}) "
        "makes shorter passages."
    )


def _built_before(out: Path, finished: Manifest, empty: Manifest) -> IngestReport:
    """Report a finished index of the same inputs, whose rows are all duplicates; refuse others."""
    if differing := _differences(finished, empty):
        raise _already_built(out, f"made with {differing}")
    counts = _require_as_built(out, finished).counts
    counts = replace(counts, indexed=0, duplicate=counts.read - counts.rejected)
    note(f"{out} is the finished index of these rows and settings; nothing was built.")
    return IngestReport(counts=counts, resumed_rows=counts.read, seconds=0.0)


def _require_as_built(out: Path, finished: Manifest) -> BuildCursor:
    """Refuse a finished index that was not built from a source, or was changed since."""
    build = finished.build
    if build is None or not build.source_sha256:
        raise _already_built(out)
    if finished.n_docs != build.counts.indexed:
        raise _already_built(out, "changed since its build")
    return build


def _already_built(out: Path, what: str = "") -> IndexStoreError:
    of = f", {what}" if what else ""
    remedy = worded(
        "Use `index add` or `index upsert` to change it, name another folder, or remove this one.",
        f"To change it, use Index.open({str(out)!r}).add(rows) or .upsert(rows); to build another "
        "one, pass another `out`, or remove this folder.",
    )
    return IndexStoreError(f"{out} already holds a finished index{of}. {remedy}")


def open_for_build(
    out: Path,
    model: str | Path | None,
    open_model: Callable[..., TextEmbedder],
    /,
    n_shards: int | None = None,
    **options: Unpack[EmbedderOptions],
) -> TextEmbedder:
    """Open a model as an unfinished build did, so that a resumed build writes the same vectors."""
    stored = None
    with contextlib.suppress(NotAnIndex):
        manifest = _open_begun(out, n_shards).snapshot.manifest
        if manifest.segments and manifest.settings.identity:
            stored = manifest.settings
    return open_model(**(options if stored is None else with_kept_choices(model, options, stored)))


def model_opener(
    model: ModelLike | None, out: Path, options: EmbedderOptions, n_shards: int | None = None
) -> Callable[[], TextEmbedder]:
    """Return a function that opens the model of a build into the folder ``out``."""
    if model is None or isinstance(model, (str, Path)):
        opened = partial(as_embedder, model)
        return partial(open_for_build, out, model, opened, n_shards=n_shards, **options)
    return partial(as_embedder, model, **options)


def create_index(
    out: Path,
    model: ModelLike | None,
    dim: int | None,
    settings: BuildSettings | None,
    keywords: BuildKeywords,
    n_shards: int | None,
) -> IndexStore:
    """Make an index without documents; see `Index.create`."""
    require_known(keywords, BuildKeywords)
    settings, options = split_keywords(settings or BuildSettings(), keywords)
    embedder = None
    if dim is None:
        embedder = as_embedder(model, **cast("EmbedderOptions", options))
        dim = embedder.dim
    elif model is not None or not is_integer(dim) or dim < 1:
        raise ConfigError(
            f"dim is {dim!r}; it must be an integer of at least 1, and be given without a model. "
            "For an index with a model, leave out dim."
        )
    else:
        refuse_model_options(options)
    _note_english_model(settings, embedder)
    settings.chunking(embedder)  # refuses a size that the model cannot read
    fixed = vector_settings(settings, embedder, int(dim))
    faiss_build.require_possible(fixed)
    settings = replace(settings, predicted_by=settings.predicted.hashes)
    cursor = BuildCursor(source_sha256="", rows=0, settings=settings.stored_values(), finished=True)
    empty = Manifest.new(fixed, lexical=settings.lexical, build=cursor)
    return IndexStore.create(out, empty, n_shards=n_shards)


@contextlib.contextmanager
def note_resume_on_interrupt(store: IndexStore) -> Iterator[None]:
    """Add to a keyboard interrupt a note that says what the index holds and how to resume."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        n_docs = store.snapshot.n_docs
        interrupt.add_note(
            f"{store.path} is sound and holds {n_docs:,} documents; "
            "run the same command again to resume from there."
        )
        raise


def refuse_finished(out: Path, n_shards: int | None = None) -> None:
    """Refuse, before other work, a folder in which a build can neither start nor resume."""
    if _finished(out, n_shards) is not None:
        raise _already_built(out)


def _finished(out: Path, n_shards: int | None) -> Manifest | None:
    """Return the state of a finished index; None: a build can start or resume in the folder."""
    with contextlib.suppress(NotAnIndex):
        manifest = _open_begun(out, n_shards).snapshot.manifest
        return manifest if manifest.build is None or manifest.build.finished else None
    with _unless_just_created(out, n_shards):
        IndexStore.require_free(out, n_shards=n_shards)
    return None


def _open_begun(out: Path, n_shards: int | None) -> IndexStore:
    """Open the index in the folder of a build; refuse one with another number of shards."""
    if n_shards is not None:
        require_shard_count(n_shards)
    store = IndexStore.open(out)
    found = store.snapshot.n_shards if store.snapshot.is_sharded else None
    if found == n_shards:
        return store
    if found and n_shards:
        raise IndexStoreError(
            f"{out} has {found} shards, not {n_shards}. Build with --shards {found}, name another "
            "folder, or remove this one."
        )
    kind, how = ("a sharded index", "with") if found else ("an index without shards", "without")
    raise IndexStoreError(
        f"{out} holds {kind}. Name another folder, or remove this one; an unfinished build of it "
        f"is resumed {how} --shards."
    )


def _require_unfinished(manifest: Manifest, out: Path) -> None:
    if manifest.build is None or manifest.build.finished:
        raise _already_built(out)


def _take_over(writer: IndexWriter, empty: Manifest) -> None:
    """Accept an unfinished build; one with other inputs is started over if it is still empty."""
    manifest = writer.snapshot.manifest
    _require_unfinished(manifest, writer.path)
    if differing := _differences(manifest, empty):
        if manifest.segments:
            raise IndexStoreError(
                f"{writer.path} holds {manifest.n_docs:,} documents of an unfinished build with "
                f"{differing}. Finish that build with its own command, name another folder, or "
                "remove this one."
            )
        writer.start_over(empty)


def _create_or_resume(out: Path, empty: Manifest, n_shards: int | None) -> IndexStore:
    with contextlib.suppress(NotAnIndex):
        return _open_begun(out, n_shards)
    with _unless_just_created(out, n_shards):
        return IndexStore.create(out, empty, n_shards=n_shards)
    return _open_begun(out, n_shards)


@contextlib.contextmanager
def _unless_just_created(out: Path, n_shards: int | None) -> Iterator[None]:
    """Ignore an `IndexStoreError` of the body if another process has just created the index.

    Only one of the processes then gets the lock and writes.
    """
    try:
        yield
    except IndexStoreError as refused:
        try:
            _open_begun(out, n_shards)
        except NotAnIndex:
            raise refused from None


def _differences(manifest: Manifest, empty: Manifest) -> str:
    """Return what differs between an unfinished build and this one; "" if nothing."""
    fixed, start = empty.settings, empty.build
    assert start is not None
    build = manifest.build or start
    # What is measured may differ between two runs of the same command.
    stored = replace(manifest.settings, self_check=fixed.self_check)
    rest = replace(stored, identity=fixed.identity, dim=fixed.dim)
    rest = replace(rest, verdict=fixed.verdict, batch_tokens=fixed.batch_tokens)
    rest = replace(rest, unrelated_cosine=fixed.unrelated_cosine)
    reading = {**ReadSettings().stored_values(), **build.settings}  # an older index lacks new ones
    differing = {
        "another source": build.source_sha256 != start.source_sha256,
        "another model": (stored.identity, stored.dim) != (fixed.identity, fixed.dim),
        "other settings": (reading, rest, manifest.lexical)
        != (start.settings, fixed, empty.lexical),
    }
    return " and ".join(name for name, differs in differing.items() if differs)


def vector_settings(
    settings: BuildSettings | VectorSettings, embedder: TextEmbedder | None, dim: int
) -> VectorSettings:
    """Return the settings of the index; without an embedder, its vectors are given."""
    unknown = no_model(dim, settings.metric).to_mapping()
    return VectorSettings(
        dim=dim,
        metric=settings.metric,
        dtype=settings.dtype,
        identity=stored_identity(embedder) if embedder else unknown,
        self_check=self_check(embedder) if embedder else SelfCheck(),
        spec=settings.spec,
        verdict=_verdict(embedder),
        batch_tokens=embedder.measured_batch_tokens if isinstance(embedder, Embedder) else 0,
        unrelated_cosine=unrelated_cosine(embedder) if embedder else 0.0,
    )


def _verdict(embedder: TextEmbedder | None) -> Mapping[str, object]:
    verdict = embedder.opened.verdict if isinstance(embedder, Embedder) else None
    return {} if verdict is None else to_mapping(verdict)
