"""Changing the model of an index: a second set of vectors for its rows, and then a switch to it.

While a migration embeds the stored passages with the new model, searches and updates go on with the
old one. New vectors are committed every `COMMIT_S` seconds, so an interrupted migration resumes
there. Rows that are added meanwhile are embedded by further rounds. The last round and the switch
hold the lock of the index together, and the switch is one commit. The vectors of the model before
stay until they are dropped, so that the index can go back.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.progress import note, progress
from sbert_search.embed.arguments import EmbedderOptions, ModelLike
from sbert_search.embed.delegation import LazyEmbedder
from sbert_search.embed.pipeline import EmbedBatches, embed_batches
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import ConfigError, CorpusError, IndexStoreError, ModelMismatch
from sbert_search.index.building.build import note_resume_on_interrupt, vector_settings
from sbert_search.index.building.given_vectors import dim_of, vector_rule
from sbert_search.index.building.ingest import require_memory
from sbert_search.index.building.model_check import (
    as_embedder,
    require_agreement,
    require_mixable,
    require_model,
    with_kept_choices,
)
from sbert_search.index.dense import faiss_build
from sbert_search.index.norms import largest_norm
from sbert_search.index.settings import IndexSpec
from sbert_search.index.shards.opening import joined
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import segments as npy
from sbert_search.index.storage.manifest import (
    FIRST_SET,
    FileRecord,
    Filling,
    Manifest,
    SegmentRecord,
    VectorFiles,
    VectorSettings,
)
from sbert_search.index.storage.rows import read_passages
from sbert_search.index.storage.segment_writer import as_stored
from sbert_search.index.storage.segments import Segment, open_checked
from sbert_search.index.storage.transaction import Transaction
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import compaction
from sbert_search.index.writer import IndexWriter
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.records import Document
from sbert_search.text.tokens.batching import token_batches
from sbert_search.text.vectors import RowVectors, VectorsLike, vector_problems

if TYPE_CHECKING:
    from sbert_search.index.index import Index

AnyIndex = TypeVar("AnyIndex", bound="Index")

# Rows of a segment whose passages are embedded together. The rounding of a vector depends on the
# texts that are embedded with it, so a resumed migration must embed the same rows together.
PIECE_ROWS = 1024
COMMIT_S = 15.0  # seconds after which new vectors are committed
EARLIER_KEPT = 16  # digests of earlier sets that a manifest names
SAMPLE_ROWS = 256  # passages that a plan embeds
GIVEN_BYTES = 64 << 20  # bytes of given vectors after which they are committed
LONGEST_CHECKED = 1024  # of the longest passages, which must fit the new model before it begins


@dataclass(frozen=True, kw_only=True, slots=True)
class MigrationReport:
    """What a migration has done.

    Attributes:
        model: Name of the model that made the vectors.
        embedded: Number of passages that this run embedded.
        left: Number of live passages that have no vector of this model yet.
        switched: Whether searches and updates use the model now.
        seconds: Duration of this run.

    Example:
        >>> index = Index.from_texts(["a river", "a mill"], model="hashing")
        >>> report = index.migrate("hashing:64", switch=False)
        >>> report.embedded, report.left, report.switched
        (2, 0, False)
    """

    model: str
    embedded: int
    left: int
    switched: bool
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MigrationPlan:
    """What a migration would do, measured on a sample of the passages.

    Attributes:
        model: Name of the new model.
        passages: Number of live passages to embed.
        tokens: Estimated number of their tokens in the new model.
        minutes: Estimated time to embed them on this machine.
        size_bytes: Bytes that the new vectors take beside the old ones, until these are dropped.
        changes: What differs from the present model: old and new value by name.

    Example:
        >>> index = Index.from_texts(["a river", "a mill"], model="hashing")
        >>> index.plan_migration("hashing:64").size_bytes  # two vectors of 64 float32
        512
    """

    model: str
    passages: int
    tokens: int
    minutes: float
    size_bytes: int
    changes: Mapping[str, tuple[object, object]]


class _Piece(NamedTuple):
    """Successive rows of a segment that have no vectors in the set yet."""

    part: int  # number of the shard, or 0
    record: SegmentRecord
    segment: Segment
    start: int  # position of the first row
    live: NDArray[np.bool_]  # of each row, (n_rows,)


Vectors = NDArray[np.floating]
Done = Mapping[int, Mapping[str, list[tuple[int, Vectors]]]]
"""Vectors by shard and docs file of the segment, each with the position of its first row."""


def migrate(
    index: Index,
    model: ModelLike | None,
    options: EmbedderOptions,
    *,
    switch: bool = True,
    max_minutes: float | None = None,
    embed: EmbedBatches = embed_batches,
) -> MigrationReport:
    """Embed all passages with another model, and switch the index to it; see `Index.migrate`."""
    index.require_finished()
    index.refresh()
    manifest = index.state.manifest
    begun = manifest.vectors[manifest.pending] if manifest.pending else None
    if begun and (model is None or isinstance(model, str)):
        options = with_kept_choices(model, options, begun)
    embedder = as_embedder(model, **options)
    run = _Migration(index, embedder, max_minutes, embed)
    run.require_room()
    return run.to(run.begin(), switch=switch)


def migrate_to_given(
    index: Index, vectors: VectorsLike, embedder: TextEmbedder | None, *, switch: bool = True
) -> MigrationReport:
    """Take one vector for each live passage, in the order of their rows; see `Index.migrate`."""
    started, given = time.monotonic(), RowVectors.open(vectors)
    index.require_finished()
    with index.store.writer() as writer:
        manifest = writer.snapshot.manifest
        _require_no_previous(writer.snapshot)
        if (begun := manifest.pending) is not None:  # maybe of other vectors
            writer.rewrite(lambda work: _without(work.old, {begun}))
        rule = vector_rule(
            manifest.settings.metric, manifest.settings.dtype, dim_of(given.dim, embedder)
        )
        rows = writer.snapshot.live_rows()
        given.require(len(rows), rule)
        settings = _possible(vector_settings(manifest.settings, embedder, given.dim))
        name = _add_set(writer, settings)
        state, done = writer.snapshot, _nothing()
        held = 0
        for piece in _missing(state, name):
            at = np.searchsorted(rows, piece.segment.rows[piece.start :][: len(piece.live)])
            made = np.zeros((len(piece.live), given.dim), settings.dtype)
            if piece.live.any():
                first, last = at[piece.live][[0, -1]]
                block = given.block(first, last + 1)
                for n, problem in enumerate(vector_problems(block, rule)):
                    if problem:
                        raise CorpusError(f"{given.shown}: row {first + n}: {problem}.")
                made[piece.live] = as_stored(block[at[piece.live] - first], settings)
            done[piece.part][piece.record.docs.name].append((piece.start, made))
            if (held := held + made.nbytes) >= GIVEN_BYTES:
                _put(writer, name, done)
                done, held = _nothing(), 0
        _put(writer, name, done)
        if switch:
            _switch(writer, name)
    return MigrationReport(
        model=str(settings.identity.get("name", "")),
        embedded=0,
        left=0,
        switched=switch,
        seconds=time.monotonic() - started,
    )


def plan_migration(
    index: Index, model: ModelLike | None, options: EmbedderOptions
) -> MigrationPlan:
    """Predict what `migrate` would do; see `Index.plan_migration`."""
    index.require_finished()
    embedder = as_embedder(model, **options)
    run = _Migration(index, embedder, None, embed_batches)
    run.require_room()
    return run.plan()


def preview(index: AnyIndex) -> AnyIndex:
    """Return the index as the switch will leave it; see `Index.preview_migration`."""
    index.refresh()
    state = index.state
    name = state.manifest.pending
    if name is None or (n_left := _n_missing(state, name)):
        what = f"{n_left:,} passages lack a vector of the new model" if name else "none has begun"
        raise IndexStoreError(
            f"{index.path}: no migration can be previewed, since {what}; first run "
            f"`index migrate {index.path} --model NEW --no-switch`."
        )
    parts = [
        Snapshot(part.folder, replace(part.manifest, active=name), part) for part in state.parts
    ]
    return type(index)(_Preview(joined(state.folder, state.shards, parts)))


class _Preview(IndexStore):
    """A state that is not on disk, so it is only read."""

    def newest(self) -> Snapshot:
        return self.snapshot

    def writer(self, *, at_least_s: float = 0.0) -> NoReturn:
        raise IndexStoreError(
            f"{self.path}: the preview of a migration is only searched; change the index itself."
        )

    def __reduce__(self) -> NoReturn:
        raise IndexStoreError(f"{self.path}: the preview of a migration cannot be pickled.")


def roll_back(
    index: Index, options: EmbedderOptions, *, embed: EmbedBatches = embed_batches
) -> MigrationReport:
    """Go back to the model before, which first embeds the rows since; see `Index.roll_back`."""
    index.refresh()
    manifest = index.state.manifest
    if (name := manifest.previous) is None:
        raise IndexStoreError(
            f"{index.path} has no vectors of a model before; only an index that was migrated, and "
            "whose old vectors were not dropped, can go back."
        )
    settings = manifest.vectors[name]
    identity = ModelIdentity.from_mapping(settings.identity)

    def opened() -> TextEmbedder:
        require_model(identity, index.path)
        kept = with_kept_choices(identity.name, options, settings)
        embedder = as_embedder(identity.name, **kept)
        require_agreement(settings, embedder)
        require_mixable(settings, embedder)
        return embedder

    return _Migration(index, LazyEmbedder(opened), None, embed).to(name, switch=True)


def drop_unused(index: Index) -> list[str]:
    """Remove all vectors but those in use; return the names of the models of the others."""
    with index.store.writer() as writer:
        old = writer.snapshot.manifest
        unused = old.vectors.keys() - {old.active}
        names = [str(old.vectors[name].identity.get("name", "")) for name in sorted(unused)]
        if unused:
            writer.rewrite(lambda work: _without(work.old, unused))
    return names


class _Migration:
    """One run that makes the vectors of a set."""

    def __init__(
        self,
        index: Index,
        embedder: TextEmbedder,
        max_minutes: float | None,
        embed: EmbedBatches,
    ) -> None:
        require_memory()
        self._index, self._embedder, self._embed = index, embedder, embed
        self._started = time.monotonic()
        self._until = np.inf if max_minutes is None else self._started + 60 * max_minutes
        self._n_embedded = 0

    def require_room(self) -> None:
        """Refuse a model that would cut off the longest passages, which stay as they are."""
        state, embedder = self._index.state, self._embedder
        counts = [s.int_column("n_tokens", np.int32) for s in state.segments]
        n_tokens = np.concatenate([np.empty(0, np.int32), *counts])
        rows = np.concatenate([np.empty(0, np.int64), *(s.rows for s in state.segments)])
        longest = np.sort(rows[np.argsort(-n_tokens, kind="stable")[:LONGEST_CHECKED]])
        longest = longest[np.isin(longest, state.live_rows())]
        passages = state.fetch(longest)
        tokens = embedder.tokenize([passage.text for passage in passages], task="document")
        for passage, lost in zip(passages, tokens.lost.tolist(), strict=True):
            if lost > passage.lost_tokens:
                raise _too_long(passage.document.doc_id, passage.n_tokens, embedder)

    def plan(self) -> MigrationPlan:
        """Embed a sample of the passages, and extrapolate."""
        state, embedder = self._index.state, self._embedder
        old, new = state.settings, _settings_of(state.manifest, embedder)
        if name := state.manifest.pending:
            _require_same(state.manifest.vectors[name], embedder)
        name = name or _next_name(state.manifest)
        n_left = _n_missing(state, name)
        rows = np.random.default_rng(0).permutation(state.live_rows())[:SAMPLE_ROWS]
        texts = [passage.text for passage in state.fetch(np.sort(rows))]
        tokens = embedder.tokenize(texts, task="document")
        for part in token_batches(tokens.lengths, 4 * embedder.batch_tokens)[:1] if texts else ():
            embedder.encode_tokens(tokens.take(part))  # the first call is slower than later ones
        started = time.perf_counter()
        embedder.encode_document(texts)
        seconds = time.perf_counter() - started
        share = n_left / max(1, len(texts))
        vectors = n_left * new.dim * np.dtype(new.dtype).itemsize
        before = ModelIdentity.from_mapping(old.identity)
        return MigrationPlan(
            model=embedder.identity.name,
            passages=n_left,
            tokens=round(share * int(tokens.lengths.sum())),
            minutes=share * seconds / 60,
            size_bytes=vectors + new.spec.predicted_bytes(n_left, new.dim),
            changes={
                name: (was, now)
                for name, was, now in (
                    ("model", before.name, embedder.identity.name),
                    ("dim", old.dim, new.dim),
                    ("precision", before.precision, embedder.identity.precision),
                    ("max_len", before.max_len, embedder.max_len),
                    ("factory", old.spec.factory, new.spec.factory),
                )
                if was != now
            },
        )

    def begin(self) -> str:
        """Record the new set of vectors in the index, or find the one of a begun migration."""
        embedder = self._embedder
        with self._index.store.writer() as writer:
            manifest = writer.snapshot.manifest
            _require_no_previous(writer.snapshot)
            if name := manifest.pending:
                _require_same(manifest.vectors[name], embedder)
                return name
            settings = _settings_of(manifest, embedder)
            if settings.identity == manifest.settings.identity:
                raise ConfigError(
                    f"{self._index.path} has the vectors of {embedder.identity.name} already; name "
                    "another model."
                )
            return _add_set(writer, settings)

    def to(self, name: str, *, switch: bool) -> MigrationReport:
        """Make the vectors that the set lacks, and switch to it."""
        store, is_switched = self._index.store, False
        with note_resume_on_interrupt(store):
            while True:
                n_left = _n_missing(store.snapshot, name)
                if n_left <= PIECE_ROWS or time.monotonic() >= self._until:
                    break
                self._fill(store.snapshot, name, self._put)
                store.refresh()
            if switch and time.monotonic() < self._until:
                with store.writer() as writer:
                    self._fill(writer.snapshot, name, lambda *made: _put(writer, *made))
                    _switch(writer, name)
                is_switched = True
            elif n_left and time.monotonic() < self._until:
                self._fill(store.snapshot, name, self._put)
        manifest = store.snapshot.manifest
        return MigrationReport(
            model=str(manifest.vectors[name].identity.get("name", "")),
            embedded=self._n_embedded,
            left=_n_missing(store.snapshot, name),
            switched=is_switched,
            seconds=time.monotonic() - self._started,
        )

    def _put(self, name: str, done: Done) -> None:
        with self._index.store.writer() as writer:
            _put(writer, name, done)

    def _fill(self, state: Snapshot, name: str, put: Callable[[str, Done], None]) -> None:
        """Embed the passages that lack a vector in a state, and commit the vectors."""
        n_left = _n_missing(state, name)
        if not n_left:
            if any(name not in record.vectors for record in state.manifest.segments):
                put(name, _of_dead_rows(state, name))
            return
        settings = state.manifest.vectors[name]
        done = _nothing()
        committed = time.monotonic()
        with (
            progress("Embedding passages again", n_left, "passages") as advance,
            closing(self._embed(_texts(state, name), self._embedder, advance=advance)) as batches,
        ):
            for batch in batches:
                piece = batch.payload
                for document, lost in zip(batch.documents, batch.lost_tokens, strict=True):
                    if lost and not document.metadata["lost"]:
                        row = int(document.doc_id)
                        (doc_id,) = state.doc_ids(np.array([row]))
                        raise _too_long(doc_id, int(batch.n_tokens.max()), self._embedder)
                vectors = np.zeros((len(piece.live), settings.dim), settings.dtype)
                vectors[piece.live] = as_stored(batch.vectors, settings)
                if not np.isfinite(vectors).all():
                    raise IndexStoreError(
                        f"A vector of {piece.record.docs.name} is not finite as {settings.dtype}; "
                        "the model fails on its text."
                    )
                done[piece.part][piece.record.docs.name].append((piece.start, vectors))
                self._n_embedded += len(batch.documents)
                if (now := time.monotonic()) >= min(committed + COMMIT_S, self._until):
                    put(name, done)
                    done = _nothing()
                    committed = now
                    if now >= self._until:
                        return
        put(name, done)


def _require_same(stored: VectorSettings, embedder: TextEmbedder) -> None:
    try:
        require_agreement(stored, embedder, allow_inexact=None)
        require_mixable(stored, embedder)
    except ModelMismatch as error:
        raise ModelMismatch(
            f"A migration to {stored.identity.get('name')} has begun: {error} Or end it with "
            "`index migrate --abandon`."
        ) from error


def _require_no_previous(state: Snapshot) -> None:
    if state.manifest.previous:
        raise IndexStoreError(
            f"{state.path} still holds the vectors of the model before; drop them "
            "(`index migrate --finish`), or go back to them (`index migrate --rollback`)."
        )


def _add_set(writer: IndexWriter, settings: VectorSettings) -> str:
    """Record a new set, which has no vectors yet; return its name."""
    name = _next_name(writer.snapshot.manifest)
    writer.rewrite(lambda w: replace(w.old, vectors={**w.old.vectors, name: settings}))
    return name


def _settings_of(manifest: Manifest, embedder: TextEmbedder) -> VectorSettings:
    """Return the settings of a new set: those of the present one, with another model."""
    return _possible(vector_settings(manifest.settings, embedder, embedder.dim))


def _possible(settings: VectorSettings) -> VectorSettings:
    """Return settings without a FAISS index that the dimension does not allow."""
    try:
        faiss_build.require_possible(settings)
    except ConfigError as error:
        note(f"The new vectors are searched exactly until `index tune` is run: {error}")
        settings = replace(settings, spec=IndexSpec())
    return settings


def _next_name(manifest: Manifest) -> str:
    return f"{FIRST_SET[0]}{int(manifest.active[1:]) + 1}"


def _missing(state: Snapshot, name: str) -> Iterator[_Piece]:
    """Yield the pieces of all segments that lack vectors in a set, in the order of their rows."""
    for number, part in enumerate(state.parts):
        filling = part.manifest.filling
        for i, record in enumerate(part.manifest.segments):
            if name in record.vectors:
                continue
            is_begun = filling and (filling.vectors, filling.docs) == (name, record.docs.name)
            live = part.live(i)
            marks = np.ones(record.n_rows, bool) if live is None else live
            for start in range(
                filling.n_rows if filling and is_begun else 0, len(marks), PIECE_ROWS
            ):
                piece = marks[start : start + PIECE_ROWS]
                yield _Piece(number, record, part.segments[i], start, piece)


def _n_missing(state: Snapshot, name: str) -> int:
    return sum(int(piece.live.sum()) for piece in _missing(state, name))


def _texts(state: Snapshot, name: str) -> Iterator[tuple[list[Document], _Piece]]:
    """Read the live passages of the pieces, each as a document whose id is its row."""
    for piece in _missing(state, name):
        at = piece.start + np.flatnonzero(piece.live)
        passages = list(read_passages([(piece.segment, at)], {}))
        for passage in passages:
            if not passage.text:
                raise IndexStoreError(
                    f"{state.path}: document {passage.document.doc_id!r} has no text to embed; "
                    "build an index from the new vectors instead."
                )
        yield (
            [
                Document(str(passage.row), passage.text, metadata={"lost": passage.lost_tokens})
                for passage in passages
            ],
            piece,
        )


def _nothing() -> Done:
    return defaultdict(lambda: defaultdict(list))


def _of_dead_rows(state: Snapshot, name: str) -> Done:
    """Return vectors of 0 for segments whose rows without vectors are all dead."""
    settings = state.manifest.vectors[name]
    done = _nothing()
    for piece in _missing(state, name):
        vectors = np.zeros((len(piece.live), settings.dim), settings.dtype)
        done[piece.part][piece.record.docs.name].append((piece.start, vectors))
    return done


def _too_long(doc_id: str, n_tokens: int, embedder: TextEmbedder) -> IndexStoreError:
    return IndexStoreError(
        f"The new model reads {embedder.max_len} tokens, and would cut off a passage of document "
        f"{doc_id!r}, which has about {n_tokens}. Passages stay as they are in a migration; build "
        "a new index with this model."
    )


def _put(writer: IndexWriter, name: str, done: Done) -> None:
    """Commit vectors; those of a segment that another commit has replaced are left out."""
    with writer.rewriting() as works:
        for number, work in enumerate(works):
            new = _with_vectors(work, name, done.get(number, {}))
            if new != work.old:
                work.commit(new)


def _with_vectors(
    work: Transaction, name: str, done: Mapping[str, Sequence[tuple[int, Vectors]]]
) -> Manifest:
    old = work.old
    if name not in old.vectors:
        raise IndexStoreError(f"{work.folder}: this migration was ended by another process.")
    present = {record.docs.name for record in old.segments if name not in record.vectors}
    filling = old.filling if old.filling and old.filling.docs in present else None
    segments = []
    for record in old.segments:
        made = done.get(record.docs.name, ()) if record.docs.name in present else ()
        begun = filling if filling and filling.docs == record.docs.name else None
        made = [(at, part) for at, part in made if at >= (begun.n_rows if begun else 0)]
        if made and made[0][0] == (begun.n_rows if begun else 0):
            parts = [part for _, part in made]
            written = _extended(work, name, record, begun, parts)
            if isinstance(written, VectorFiles):
                record = replace(record, vectors={**record.vectors, name: written})
                filling = None if begun else filling
            else:
                filling = written
        segments.append(record)
    return replace(old, segments=tuple(segments), filling=filling)


def _extended(
    work: Transaction,
    name: str,
    record: SegmentRecord,
    begun: Filling | None,
    parts: Sequence[Vectors],
) -> VectorFiles | Filling:
    """Write further vectors of a segment: all of them as one file, or one more piece."""
    settings = work.old.vectors[name]
    max_norm = max(begun.max_norm if begun else 0.0, *map(largest_norm, parts))
    n_rows = sum(map(len, parts))
    is_whole = n_rows + (begun.n_rows if begun else 0) == record.n_rows
    earlier = _pieces(work, begun, settings) if is_whole and begun else []
    with work.new_file(f"seg/{work.new_number():06d}.vec.npy") as file:
        shape = (record.n_rows if is_whole else n_rows, settings.dim)
        file.write(npy.header(settings.dtype, shape))
        for part in (*earlier, *parts):
            file.write(np.ascontiguousarray(part))
    if is_whole:
        return VectorFiles(file=FileRecord.of(file), max_norm=max_norm)
    return Filling(
        vectors=name,
        docs=record.docs.name,
        pieces=(*(begun.pieces if begun else ()), FileRecord.of(file)),
        rows=(*(begun.rows if begun else ()), n_rows),
        max_norm=max_norm,
    )


def _pieces(work: Transaction, begun: Filling, settings: VectorSettings) -> list[Vectors]:
    return [
        npy.read(
            open_checked(work.folder, file, hash_up_to=file.size_bytes),
            file.name,
            settings.dtype,
            (n_rows, settings.dim),
        )
        for file, n_rows in zip(begun.pieces, begun.rows, strict=True)
    ]


def _switch(writer: IndexWriter, name: str) -> None:
    """Make a set, which has a vector for each row, the one in use, in one commit."""
    n_shards = writer.snapshot.n_shards

    def change(work: Transaction) -> Manifest:
        old = work.old
        new = replace(
            old,
            active=name,
            filling=None,
            tuning=None,
            earlier=(*old.earlier, old.settings.digest)[-EARLIER_KEPT:],
        )
        if new.settings.spec.is_flat or not new.segments:
            return new
        return compaction.with_ann(work, Snapshot(work.folder, new), new, n_shards=n_shards)

    if unused := ", ".join(writer.snapshot.manifest.active_query_models):
        note(f"The query models {unused} belong to the model before; add those of the new one.")
    writer.rewrite(change)


def _without(old: Manifest, names: set[str]) -> Manifest:
    """Return a state without some sets of vectors."""
    segments = tuple(
        replace(s, vectors={name: v for name, v in s.vectors.items() if name not in names})
        for s in old.segments
    )
    return replace(
        old,
        vectors={name: settings for name, settings in old.vectors.items() if name not in names},
        query_models={k: m for k, m in old.query_models.items() if m.vectors not in names},
        segments=segments,
        filling=None,
    )
