"""Ingesting documents: read, classify, embed and commit them, batch by batch."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, groupby
from pathlib import Path
from typing import Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import memory
from sbert_search.base.progress import Advance, note, progress, warn
from sbert_search.embed.delegation import LazyEmbedder
from sbert_search.embed.pipeline import (
    EmbedBatches,
    EmbeddedBatch,
    OnTruncate,
    embed_batches,
    join_batches,
)
from sbert_search.embed.protocol import TextEmbedder, Vectors
from sbert_search.errors import CorpusError
from sbert_search.index.building.given_vectors import given_batches
from sbert_search.index.building.settings import AddedColumns, NewColumns, ReadSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import BuildCursor
from sbert_search.index.storage.rows import StoredPassage
from sbert_search.index.writer import Outcome
from sbert_search.records import Document, RowCounts
from sbert_search.text.documents import CorpusReader, ReadBatch, Reject, Survey
from sbert_search.text.formats.rows import RejectLog, listed_rejects
from sbert_search.text.tokens.chunking import AT_BORDERS, Chunking

Mode = Literal["add", "upsert"]
FindUnchanged = Callable[[Sequence[Document]], EmbeddedBatch[NDArray[np.int64]] | None]
"""Finds the documents that keep their vectors; see `IndexWriter.unchanged`."""
NoteReplacing = Callable[[Sequence[Document]], object]
KeepsPassages = Callable[[Sequence[StoredPassage]], bool]

SHOWN = 5  # largest number of new metadata columns, or of ids, that a message names
COMMIT_S = 15.0  # seconds without a commit, after which an incomplete block is committed
_BATCH_TOKENS = 16_384  # least number of estimated tokens of a batch that ends within a block
_STEPS_A_BATCH = 8  # least number of full forward passes of a batch that ends within a block
_CHARS_A_TOKEN = 4  # estimated
_NEAR = 0.75  # similarity of names from which one may be a misspelt form of the other
_KNOWN_IDS = 1 << 17  # number of first rows whose ids are compared with those of later rows


class Classifies(Protocol):
    """Compares documents with those of an index or a file."""

    def classify(
        self, documents: Sequence[Document], mode: Mode, vectors: Vectors | None
    ) -> list[Outcome]:
        """Return what adding each document would do, before it is embedded."""


class Sink(Classifies, Protocol):
    """Receives embedded documents; `IndexWriter` is one."""

    @property
    def path(self) -> Path:
        """The folder or file that is written."""

    def commit(
        self,
        batch: EmbeddedBatch[object],
        *,
        cursor: BuildCursor | None,
        starts_block: bool,
        ends_block: bool,
    ) -> None:
        """Write the documents of a whole block, or of a part of one; see `IndexWriter.commit`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestReport:
    """The outcomes of the rows of a source.

    Attributes:
        counts: Outcomes of all rows, including those of earlier runs of the same build.
        resumed_rows: Number of rows that earlier runs of the build had processed.
        passages: Number of passages of this run that were embedded or have a given vector. If two
            rows of one commit have the same id, the passages of the first row are counted here, but
            not written.
        reused: Number of documents whose text the index had, under their ids or as moved files,
            and which keep its vectors; their passages are not in ``passages``.
        truncated: Number of these passages that are longer than the model reads.
        lost_tokens: Number of tokens that were cut off from these passages.
        seconds: Time from the first row read to the last commit.
        rejects_file: File that lists the rejected rows; None when there are none.
        dry_run: Whether the counts are those of an upsert that was only planned.
        new_columns: Metadata columns that the index had not before, perhaps misspelt ones.
        changed_columns: The new type of each column of integers that got a float.
        lost: What replaced documents lost since no row has it, such as a column: one message each.

    Example:
        >>> Index.open("my.index").add([{"_id": "rain", "text": "Rain falls."}]).passages
        1
    """

    counts: RowCounts
    resumed_rows: int = 0
    passages: int = 0
    reused: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    seconds: float
    rejects_file: Path | None = None
    dry_run: bool = False
    new_columns: tuple[str, ...] = ()
    changed_columns: Mapping[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Step:
    """The data of a batch besides its documents, which its commit needs."""

    rejects: list[Reject]
    counts: RowCounts
    rows_end: int  # as in `ReadBatch`
    vectors: Vectors | None  # given ones, of the accepted documents; None: a model makes them
    accepted: list[Document]
    # Those of the accepted documents that keep their stored vectors, and their indices.
    stored: EmbeddedBatch[NDArray[np.int64]] | None
    starts_block: bool  # the batch is the first one of its block
    ends_block: bool  # the batch is the last one of its block

    @property
    def held_bytes(self) -> int:
        """Memory of the documents that are not embedded."""
        return self.stored.held_bytes if self.stored else 0


class _Commits:
    """Commits the batches of a block together, or earlier if ``every_s`` seconds have passed."""

    def __init__(
        self, sink: Sink, rejects: RejectLog, cursor: BuildCursor | None, every_s: float
    ) -> None:
        self.counts = cursor.counts if cursor else RowCounts()  # of all committed rows
        self.totals = Counter[str]()  # passages, truncated ones and lost tokens of this run
        self._sink, self._rejects, self._cursor, self._every_s = sink, rejects, cursor, every_s
        self._waiting: list[EmbeddedBatch[_Step]] = []
        self._committed_s = time.monotonic()

    def add(self, batch: EmbeddedBatch[_Step]) -> None:
        """Commit a batch and those that wait, or let it wait for the rest of its block."""
        self._waiting.append(batch)
        due = time.monotonic() >= self._committed_s + self._every_s
        # The block's next commit extends the segment of this one, which thus needs a document.
        if batch.payload.ends_block or (due and any(len(b.documents) for b in self._waiting)):
            self.commit()

    def commit(self) -> None:
        """Commit the batches that wait, if any."""
        if not self._waiting:
            return
        first, batch = self._waiting[0].payload, join_batches(self._waiting)
        for waiting in self._waiting:
            self.counts = self.counts + waiting.payload.counts
            self._rejects.append(waiting.payload.rejects)
        self._waiting.clear()
        last = batch.payload
        cursor = self._cursor and replace(self._cursor, rows=last.rows_end, counts=self.counts)
        self._sink.commit(
            batch, cursor=cursor, starts_block=first.starts_block, ends_block=last.ends_block
        )
        self._committed_s = time.monotonic()
        new = batch.stored_row < 0
        lost = batch.lost_tokens[new]
        self.totals["passages"] += len(lost)
        self.totals["reused"] += int(np.count_nonzero(batch.chunk[~new] == 0))
        self.totals["truncated"] += int(np.count_nonzero(lost))
        self.totals["lost_tokens"] += int(lost.sum())


def ingest(
    sink: Sink,
    reader: CorpusReader,
    embedder: TextEmbedder | None,
    *,
    survey: Survey,
    mode: Mode,
    on_truncate: OnTruncate,
    chunking: Chunking = AT_BORDERS,
    cursor: BuildCursor | None = None,
    finish: Callable[[], object] = lambda: None,
    by_time: bool = False,
    predicted: AddedColumns | None = None,
    embed: EmbedBatches = embed_batches,
    find_unchanged: FindUnchanged | None = None,
    note_replacing: NoteReplacing = lambda _: None,
    revise: Callable[[Document], Document] | None = None,
) -> IngestReport:
    """Write all documents of a source to a sink.

    Each block of rows is one commit, or with ``by_time`` several if the block takes longer than
    `COMMIT_S`. An interrupted run leaves whole batches in an index, but no Parquet file. With the
    cursor of a build, the rows before the cursor are skipped, and each commit stores the new
    cursor.

    ``embedder`` is None if the reader gives all vectors. In the mode ``add``, other content under
    an id that is already indexed is rejected; ``upsert`` replaces the old content. ``predicted``
    fills metadata columns before documents are compared with those of the sink. ``finish`` is
    called when every row is committed. ``find_unchanged`` finds documents that keep their vectors;
    None: all are embedded. ``note_replacing`` is called with the documents that replace others.
    ``revise`` changes each document that was read.
    """
    require_memory()
    started = time.perf_counter()
    start = cursor or BuildCursor(source_sha256=survey.sha256, rows=0)
    rejects = RejectLog(sink.path, keep=start.counts.rejected)
    commits = _Commits(sink, rejects, cursor, COMMIT_S if by_time else math.inf)
    shares, unchanged = memory.shares(), 0

    def about() -> str:
        return f"{unchanged:,} texts unchanged" if unchanged else ""

    def counted(
        steps: Iterator[tuple[list[Document], _Step]],
    ) -> Iterator[tuple[list[Document], _Step]]:
        nonlocal unchanged
        for documents, step in steps:
            unchanged += step.counts.duplicate + (len(step.stored.payload) if step.stored else 0)
            yield documents, step

    with progress("Indexing", survey.rows - start.rows, about=about) as advance:
        share = _share_of_batch(embedder, on_truncate) if embedder else None
        batches = reader.batches(skip_rows=start.rows, share=share)
        if revise is not None:
            batches = (replace(one, documents=[*map(revise, one.documents)]) for one in batches)
        if predicted is not None:
            batches = predicted.batches(batches)
        repeated = dict[str, None]()
        stop = reader.on_error == "stop"
        steps = _classified(
            batches, sink, mode, stop, advance, repeated, note_replacing, find_unchanged
        )
        texts_embedded = partial(
            embed,
            on_truncate=on_truncate,
            chunking=chunking,
            advance=advance,
            waiting_bytes=shares.waiting - shares.batch,  # a block may wait in `commits`
        )
        embedded = _embedded(counted(steps), embedder, texts_embedded, advance)
        # If adding a batch fails, `closing` ends the threads of the generator at once. Otherwise
        # the garbage collector might close it in a thread that is just starting, and block for
        # ever.
        with closing(embedded):
            for batch in embedded:
                commits.add(batch)
                del batch  # frees the memory of this batch while the next one is embedded
        commits.commit()
    warn_of_repeated([*repeated])
    seconds = time.perf_counter() - started
    was_read = reader.reads(rejects.path)
    files = [each for each in listed_rejects(sink.path) if each.mark] if cursor is None else []
    if files and not was_read:
        rejects.append(files)  # by which later syncs of a folder know what they have reported
    # A finished build cannot be repeated, so the list gets its final name before `finish`.
    if not was_read:
        rejects.finish(was_read=False)
    finish()
    if was_read:  # if `finish` fails, a repeated run must still be able to read the source
        rejects.finish(was_read=True)
    return IngestReport(
        counts=commits.counts,
        resumed_rows=start.rows,
        passages=commits.totals["passages"],
        reused=commits.totals["reused"],
        truncated=commits.totals["truncated"],
        lost_tokens=commits.totals["lost_tokens"],
        seconds=seconds,
        rejects_file=rejects.path if commits.counts.rejected else None,
    )


def planned(
    reader: CorpusReader,
    classifier: Classifies,
    predicted: AddedColumns,
    note_replacing: NoteReplacing,
) -> tuple[RowCounts, list[str]]:
    """Return the outcomes of an upsert, and the ids that several of its rows have."""
    repeated, counts = dict[str, None](), RowCounts()
    batches = predicted.batches(reader.batches())
    for _, step in _classified(
        batches, classifier, "upsert", True, lambda _: None, repeated, note_replacing
    ):
        counts = counts + step.counts
    return counts, [*repeated]


def require_memory() -> None:
    """Refuse a memory budget that is too small for work on documents."""
    memory.require(memory.shares().work, "Reading, embedding and writing documents")


def warn_of_repeated(doc_ids: Sequence[str]) -> None:
    """Warn of ids that several rows of an upsert have."""
    if doc_ids:
        warn(f"Several rows have one id, of which the last row counts: {listed(doc_ids)}.")


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and the number of the others."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def note_columns(
    state: Snapshot, survey: Survey, new_columns: NewColumns
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Print notes about the metadata columns that an update adds, or whose type it changes.

    Both are returned, or an error if the setting ``new_columns`` refuses added columns, or fields
    that are not read and seem to be columns with misspelt names.
    """
    if not state.n_docs:
        return (), {}
    columns, refused = survey.columns, "They are refused, since new_columns is error."
    pairs = ((name, _nearest(name, lacking)) for name, lacking in survey.left_out.items())
    if misspelt := [f"{name} (did you mean {near[0]}?)" for name, near in pairs if near]:
        said = f"Not read, since they are no metadata fields: {listed(misspelt)}."
        if new_columns == "error":
            raise CorpusError(f"{said} {refused}")
        warn(said)
    if added := [name for name in columns if name not in state.columns]:
        near = {name: _nearest(name, state.columns) for name in added}
        hints = {name: "".join(f"; did you mean {one}?" for one in near[name]) for name in added}
        added.sort(key=lambda name: not near[name])
        new = [f"{name} ({columns[name]}{hints[name]})" for name in added]
        said = f"New metadata columns: {listed(new)}."
        if new_columns == "error":
            raise CorpusError(f"{said} {refused}")
        (warn if any(near.values()) else note)(said)
    changed = dict[str, str]()
    for name, kind in state.columns.items():
        if (wider := columns.get(name, kind)) != kind:
            changed[name] = wider
            note(f"The metadata column {name} is {wider} from now on, no longer {kind}.")
    return tuple(added), changed


def _nearest(name: str, known: Collection[str]) -> list[str]:
    """Return the known name that ``name`` may misspell, as a list of one, or an empty list."""
    from difflib import get_close_matches  # takes 20 ms

    return get_close_matches(name, known, 1, _NEAR)


def _classified(
    batches: Iterator[ReadBatch],
    sink: Classifies,
    mode: Mode,
    stop: bool,
    advance: Advance,
    repeated: dict[str, None],
    note_replacing: NoteReplacing,
    find_unchanged: FindUnchanged | None = None,
) -> Iterator[tuple[list[Document], _Step]]:
    """Drop duplicates and conflicts before they are embedded, and count all outcomes.

    Ids of rows that replace an earlier row are added to ``repeated``.
    """
    seen = set[int]()
    for batch in batches:
        outcomes = sink.classify(batch.documents, mode, batch.vectors)
        classified = list(zip(batch.documents, outcomes, strict=True))
        for document, outcome in classified if mode == "upsert" else ():
            if (own := hash(document.doc_id)) in seen and outcome is Outcome.REPLACE:
                repeated[document.doc_id] = None
            elif len(seen) < _KNOWN_IDS:
                seen.add(own)
        if new := [doc for doc, outcome in classified if outcome is Outcome.REPLACE]:
            note_replacing(new)
        conflicts = [_conflict(doc) for doc, outcome in classified if outcome is Outcome.CONFLICT]
        if conflicts and stop:
            files = any(document.fingerprint is not None for document in batch.documents)
            raise conflicts[0].error(
                f"Use `index upsert`{', or `index sync` for a folder' if files else ''}, or "
                "--on-error skip to keep the documents in the index."
            )
        totals = Counter(outcomes)
        counts = RowCounts(
            indexed=totals[Outcome.NEW],
            replaced=totals[Outcome.REPLACE],
            duplicate=totals[Outcome.DUPLICATE],
            rejected=len(batch.rejects) + len(conflicts),
        )
        advance(counts.duplicate + counts.rejected)
        keep = [outcome in (Outcome.NEW, Outcome.REPLACE) for outcome in outcomes]
        accepted = list(compress(batch.documents, keep))
        vectors = None if batch.vectors is None else batch.vectors[keep]
        stored, embedded = None, accepted
        if find_unchanged and vectors is None and accepted:
            stored = find_unchanged(accepted)
        if stored is not None:
            kept = set(stored.payload.tolist())
            embedded = [document for at, document in enumerate(accepted) if at not in kept]
            advance(len(kept))
        yield (
            embedded,
            _Step(
                rejects=[*batch.rejects, *conflicts],
                counts=counts,
                rows_end=batch.rows_end,
                vectors=vectors,
                accepted=accepted,
                stored=stored,
                starts_block=batch.starts_block,
                ends_block=batch.ends_block,
            ),
        )


def _embedded(
    steps: Iterator[tuple[list[Document], _Step]],
    embedder: TextEmbedder | None,
    embed: EmbedBatches,
    advance: Advance,
) -> Generator[EmbeddedBatch[_Step]]:
    """Yield batches with their vectors: the given ones, or those of the embedder."""
    for is_given, run in groupby(steps, key=lambda item: item[1].vectors is not None):
        if is_given or embedder is None:
            yield from given_batches(((docs, step.vectors, step) for docs, step in run), advance)
        else:
            with closing(embed(run, embedder)) as batches:
                for batch in batches:
                    yield _with_stored(batch)
                    del batch


def _with_stored(batch: EmbeddedBatch[_Step]) -> EmbeddedBatch[_Step]:
    """Add the documents of the batch that keep their stored vectors, each at its place."""
    step = batch.payload
    if step.stored is None:
        return batch
    places = np.concatenate(
        [np.setdiff1d(np.arange(len(step.accepted)), step.stored.payload), step.stored.payload]
    )
    stored: EmbeddedBatch[object] = step.stored
    both = join_batches([batch, replace(stored, payload=step)])
    return cast("EmbeddedBatch[_Step]", both).reordered(step.accepted, places)


def cuts_stay(settings: ReadSettings, before: ReadSettings) -> KeepsPassages:
    """Return whether stored passages are those that settings make of the same text.

    ``before`` are the settings of the index. Given vectors, whose passages have no tokens, stay.
    """
    mode, chunking = settings.on_truncate, settings.chunking(None)
    same = (mode, chunking) == (before.on_truncate, before.chunking(None))

    def stay(passages: Sequence[StoredPassage]) -> bool:
        if not any(passage.n_tokens for passage in passages):
            return True
        is_cut = any(passage.lost_tokens for passage in passages)
        if len(passages) == 1 and not is_cut:
            most = chunking.tokens if mode == "chunk" else None
            return most is None or passages[0].n_tokens <= most
        return same and (mode == "warn" if is_cut else mode == "chunk")

    return stay


def _share_of_batch(embedder: TextEmbedder, on_truncate: OnTruncate) -> Callable[[Document], float]:
    """Return a function that estimates which share of a batch a document fills.

    A block of long texts is cut into several batches, so that a slow build can commit within the
    block. Texts that are embedded together change the rounding of each other's vectors. So a
    resumed build must cut the same batches as an uninterrupted one. The shares therefore depend on
    lengths in characters and on the model, not on time. (An update may open its model only after
    the first batches; the shares may change then.)
    """
    step_tokens = 0 if _is_closed(embedder) else embedder.batch_tokens

    def share(document: Document) -> float:
        nonlocal step_tokens
        if not step_tokens and not _is_closed(embedder):
            step_tokens = embedder.batch_tokens
        tokens = 2 + (len(document.title) + len(document.text)) // _CHARS_A_TOKEN
        if on_truncate != "chunk" and step_tokens:
            tokens = min(tokens, embedder.max_len)
        return tokens / max(_BATCH_TOKENS, _STEPS_A_BATCH * step_tokens)

    return share


def _is_closed(embedder: TextEmbedder) -> bool:
    """Whether a use of the embedder would open its model, which no text may need."""
    return isinstance(embedder, LazyEmbedder) and not embedder.is_open


def _conflict(document: Document) -> Reject:
    return Reject(
        document.source,
        "the id is already indexed with other content, which only upsert replaces",
        document.doc_id,
    )
