"""Documents into an index: read, told apart, embedded and committed, batch by batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from sbert_search.config import to_mapping
from sbert_search.corpus.documents import CorpusReader, FieldNames, ReadBatch, Reject, Survey
from sbert_search.corpus.rejects import RejectLog
from sbert_search.embedding.pipeline import EmbeddedBatch, OnTruncate, embed_batches
from sbert_search.embedding.protocol import TextEmbedder
from sbert_search.index.storage.manifest import BuildCursor
from sbert_search.index.writer import Outcome
from sbert_search.records import Document, RowCounts
from sbert_search.runtime import memory
from sbert_search.runtime.progress import Advance, progress

Mode = Literal["add", "upsert"]


class Sink(Protocol):
    """Where embedded documents go; an `IndexWriter` is one."""

    @property
    def path(self) -> Path:
        """The folder or file that is written."""

    def classify(self, documents: Sequence[Document], mode: Mode) -> list[Outcome]:
        """Say what each document would be, before it costs an embedding."""

    def commit(self, batch: EmbeddedBatch[Any], *, cursor: BuildCursor | None) -> None:
        """Write a batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadSettings:
    """How documents are read and embedded.

    Attributes:
        fields: Which fields of a row hold its id, text and title.
        on_error: Stop at the first bad row, or skip bad rows and list them.
        on_truncate: What to do with texts longer than the model reads.
    """

    fields: FieldNames = FieldNames()  # noqa: RUF009 (frozen)
    on_error: Literal["stop", "skip"] = "stop"
    on_truncate: OnTruncate = "warn"

    def stored_values(self) -> dict[str, object]:
        """Return what an index keeps of it, as plain values, whatever a subclass adds."""
        names = [field.name for field in fields(ReadSettings)]
        return {name: value for name, value in to_mapping(self).items() if name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestReport:
    """What became of the rows of a source.

    Attributes:
        counts: Where every row ended, those of earlier runs of the same build included.
        resumed_rows: Rows among them that earlier runs had done.
        passages: Passages embedded by this run; those of a document that a later row of the same
            batch replaces are not written.
        truncated: Passages among them that are longer than the model reads.
        lost_tokens: Tokens that were cut off them.
        seconds: From the first row read to the last commit.
        rejects_file: Where the rejected rows are listed; None when there are none.
    """

    counts: RowCounts
    resumed_rows: int
    passages: int
    truncated: int
    lost_tokens: int
    seconds: float
    rejects_file: Path | None


@dataclass(frozen=True, slots=True)
class _Step:
    """What goes with a batch from reading to its commit."""

    rejects: list[Reject]
    counts: RowCounts
    rows_end: int


def ingest(
    sink: Sink,
    reader: CorpusReader,
    embedder: TextEmbedder,
    *,
    survey: Survey,
    mode: Mode,
    on_truncate: OnTruncate,
    cursor: BuildCursor | None = None,
    memory_bytes: int | None = None,
    finish: Callable[[], object] = lambda: None,
) -> IngestReport:
    """Write all documents of a source to a sink.

    Every batch is one commit: after a kill an index holds whole batches. With a cursor the rows
    it has done are passed over, and every commit moves it.

    Args:
        sink: Where they go.
        reader: The source, surveyed.
        embedder: What makes the vectors.
        survey: What the survey found.
        mode: Whether other content under a known id is rejected or replaces the old.
        on_truncate: What to do with texts longer than the model reads.
        cursor: Where a build stands; None for an update.
        memory_bytes: What the process may take; None: no limit.
        finish: Ends the work on the sink once every row is committed. Only then is a source given
            up that is the older list of rejected rows.

    Raises:
        ConfigError: The process has no room for the work.
        CorpusError: A bad row, and the reader stops at those.
        IndexStoreError: The index cannot be written; what was committed stays.
    """
    require_memory(memory_bytes)
    begun = time.perf_counter()
    start = cursor or BuildCursor(source_sha256=survey.sha256, rows=0)
    rejects = RejectLog(sink.path, keep=start.counts.rejected)
    tally = Counter[str]()
    counts = start.counts
    with progress("Indexing", survey.rows - start.rows) as advance:
        batches = reader.batches(skip_rows=start.rows)
        steps = _classified(batches, sink, mode, reader.on_error == "stop", advance)
        embedded = embed_batches(
            steps,
            embedder,
            on_truncate=on_truncate,
            advance=advance,
            waiting_bytes=memory.shares(memory_bytes).waiting,
        )
        for batch in embedded:
            step = batch.payload
            counts = counts + step.counts
            rejects.append(step.rejects)
            moved = cursor and replace(cursor, rows=step.rows_end, counts=counts)
            sink.commit(batch, cursor=moved)
            tally["passages"] += len(batch.doc_of)
            tally["truncated"] += int(np.count_nonzero(batch.lost_tokens))
            tally["lost_tokens"] += int(batch.lost_tokens.sum())
            del batch, step
    seconds = time.perf_counter() - begun
    finish()
    rejects.finish(was_read=reader.reads(rejects.path))
    return IngestReport(
        counts=counts,
        resumed_rows=start.rows,
        passages=tally["passages"],
        truncated=tally["truncated"],
        lost_tokens=tally["lost_tokens"],
        seconds=seconds,
        rejects_file=rejects.path if counts.rejected else None,
    )


def require_memory(memory_bytes: int | None) -> None:
    """Refuse a budget for this process that work on documents does not keep within.

    Raises:
        ConfigError: With what is left of it, and how much is needed.
    """
    memory.give_back_freed(memory_bytes)
    needed = memory.shares(memory_bytes).work
    memory.require(memory_bytes, needed, "Reading, embedding and writing documents")


def _classified(
    batches: Iterator[ReadBatch], sink: Sink, mode: Mode, stop: bool, advance: Advance
) -> Iterator[tuple[list[Document], _Step]]:
    """Leave out what need not or must not be embedded, and account for it."""
    for batch in batches:
        outcomes = sink.classify(batch.documents, mode)
        judged = list(zip(batch.documents, outcomes, strict=True))
        conflicts = [_conflict(doc) for doc, outcome in judged if outcome is Outcome.CONFLICT]
        if conflicts and stop:
            raise conflicts[0].error(
                "Use `index upsert`, or --on-error skip to keep what is there."
            )
        tally = Counter(outcomes)
        counts = RowCounts(
            indexed=tally[Outcome.NEW],
            replaced=tally[Outcome.REPLACE],
            duplicate=tally[Outcome.DUPLICATE],
            rejected=len(batch.rejects) + len(conflicts),
        )
        advance(counts.duplicate + counts.rejected)
        kept = [doc for doc, outcome in judged if outcome in (Outcome.NEW, Outcome.REPLACE)]
        yield kept, _Step([*batch.rejects, *conflicts], counts, batch.rows_end)


def _conflict(document: Document) -> Reject:
    return Reject(
        document.source,
        "the id is already there with other content, which only upsert replaces",
        document.doc_id,
    )
