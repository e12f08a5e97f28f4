"""Random streams of rows over few ids, and what a dict makes of them one row after the other.

A stream is a series of commands on one index: rows added or upserted, some commands interrupted
and run again, documents deleted between them, segments merged. Reading, classifying, embedding and
committing overlap as in the command line, so most ids have several versions in flight at once.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sbert_search.base.cache import typed_lru_cache
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.pipeline import EmbeddedBatch
from sbert_search.index.building.ingest import Mode, cuts_stay, ingest
from sbert_search.index.building.settings import ReadSettings
from sbert_search.index.settings import LexicalSettings
from sbert_search.index.storage.ids import hash_content
from sbert_search.index.storage.manifest import BuildCursor, ColumnType, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.writer import IndexWriter, Outcome
from sbert_search.records import Document, RowCounts
from sbert_search.text.documents import CorpusReader, ReadBatch, Reject, Survey

DIM = 4
CHUNKS = ReadSettings(on_truncate="chunk")

Model = dict[str, str]
"""Text of each document by id."""


class Interrupted(Exception):  # noqa: N818 (it is no error of the work)
    """The reader stops here, as at Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What is drawn once for a stream.

    Attributes:
        seed: Of everything else.
        rows: Rows of all commands together, those run twice counted once.
        n_ids: Ids that rows have.
        n_states: Contents that an id can have.
        skew: How ids are drawn: evenly, few much more often, in sweeps over all, in bursts.
        batch_rows: Rows of a commit.
        n_commands: Commands that add or upsert.
        blank: Share of rows that are rejected when they are read.
        interrupt: Chance that a command is stopped once before it is run to its end.
        words: Words of a text at most; one of more than four becomes several passages.
        lexical: Whether postings are kept.
        from_file: Whether rows are read from a file, which takes longer than from memory.
    """

    seed: int
    rows: int
    n_ids: int
    n_states: int
    skew: str
    batch_rows: int
    n_commands: int
    blank: float
    interrupt: float
    words: int
    lexical: bool
    from_file: bool

    @property
    def with_metadata(self) -> bool:
        """Whether documents have a metadata column, by which some commands delete."""
        return self.n_states <= 50


def draw_stream(seed: int, rows: int) -> Stream:
    """Draw the shape of a stream."""
    rng = random.Random(f"stream {seed}")
    return Stream(
        seed=seed,
        rows=rows,
        n_ids=rng.choice([2_000, 4_000, 8_000, 20_000, rng.randint(2_000, 20_000)]),
        n_states=rng.choice([1, 2, 2, 2, 3, 5, 50, 10**9]),
        skew=rng.choice(["even", "even", "few", "sweeps", "bursts"]),
        batch_rows=rng.choice([1024, 1024, 1024, 100, 333, 3000]),
        n_commands=rng.randint(1, 6),
        blank=rng.choice([0, 0, 0.01, 0.2]),
        interrupt=rng.choice([0, 0.3]),
        words=rng.choice([4, 4, 4, 10]),
        lexical=seed % 10 == 0,
        from_file=seed % 10 == 5,
    )


def draw_rows(stream: Stream, rng: random.Random, n_rows: int) -> list[Document | Reject]:
    """Draw rows; those without text are rejected by the reader."""
    draw_id = _ids(stream, rng)
    rows: list[Document | Reject] = []
    for number in range(n_rows):
        source = f"rows:{number}"
        if stream.blank and rng.random() < stream.blank:
            rows.append(Reject(source, "blank"))
            continue
        state = int(rng.random() * stream.n_states)
        text = f"state{state}" + " word" * (state % (stream.words - 1))
        metadata = {"state": state} if stream.with_metadata else {}
        rows.append(Document(f"k{draw_id()}", text, metadata=metadata, source=source))
    return rows


def _ids(stream: Stream, rng: random.Random) -> Callable[[], int]:
    n_ids, place = stream.n_ids, 0

    def even() -> int:
        return int(rng.random() * n_ids)

    def few() -> int:
        return int(rng.random() ** 4 * n_ids)

    def sweep() -> int:
        nonlocal place
        place = (place + 1) % n_ids if rng.random() > 0.0005 else even()
        return place

    def burst() -> int:
        nonlocal place
        place = place if rng.random() < 0.7 else even()
        return place

    return {"even": even, "few": few, "sweeps": sweep, "bursts": burst}[stream.skew]


class Rows(CorpusReader):
    """Rows in memory instead of in files.

    Args:
        rows: All of them.
        batch_rows: Rows of a batch.
        stop_after: Batches after which reading breaks off; None: never.
    """

    def __init__(
        self, rows: Sequence[Document | Reject], batch_rows: int, stop_after: int | None = None
    ) -> None:
        self.on_error, self._files = "skip", []
        self._rows, self._batch_rows, self._stop_after = rows, batch_rows, stop_after

    def survey(self, *, allow_empty: bool = False) -> Survey:
        """Say how many rows there are."""
        columns: dict[str, ColumnType] = {"state": "int64"}
        with_metadata = any(isinstance(row, Document) and row.metadata for row in self._rows)
        return Survey(len(self._rows), 0, "", columns if with_metadata else {})

    def batches(
        self, *, skip_rows: int = 0, share: Callable[[Document], float] | None = None
    ) -> Iterator[ReadBatch]:
        """Yield them in batches."""
        for number, start in enumerate(range(skip_rows, len(self._rows), self._batch_rows)):
            if number == self._stop_after:
                raise Interrupted
            part = self._rows[start : start + self._batch_rows]
            documents = [row for row in part if isinstance(row, Document)]
            rejects = [row for row in part if isinstance(row, Reject)]
            yield ReadBatch(documents, rejects, start + len(part))


def written(rows: Sequence[Document | Reject], path: Path) -> Path:
    """Write rows to a file of JSON lines; a rejected one is blank."""
    values: list[dict[str, Any]] = [
        {"_id": row.doc_id, "text": row.text, **row.metadata}
        if isinstance(row, Document)
        else {"_id": "blank", "text": ""}
        for row in rows
    ]
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


class Watched:
    """A writer that counts the rows whose fate is committed."""

    def __init__(self, writer: IndexWriter) -> None:
        self.path, self._writer, self.rows_done = writer.path, writer, 0

    def classify(
        self, documents: Sequence[Document], mode: Mode, vectors: object = None
    ) -> list[Outcome]:
        """Classify, as the writer does."""
        return self._writer.classify(documents, mode)

    def commit(
        self,
        batch: EmbeddedBatch[Any],
        *,
        cursor: BuildCursor | None,
        starts_block: bool,
        ends_block: bool,
    ) -> None:
        """Commit, as the writer does."""
        self._writer.commit(batch, cursor=cursor)
        self.rows_done = batch.payload.rows_end


def applied(model: Model, rows: Sequence[Document | Reject], mode: Mode) -> RowCounts:
    """Change a model row by row, and count what each row was."""
    indexed = replaced = duplicate = rejected = 0
    for row in rows:
        if isinstance(row, Reject):
            rejected += 1
            continue
        known = model.get(row.doc_id)
        if known == row.text:
            duplicate += 1
        elif known is not None and mode == "add":
            rejected += 1
        else:
            indexed, replaced = indexed + (known is None), replaced + (known is not None)
            model[row.doc_id] = row.text
    return RowCounts(indexed, replaced, duplicate, rejected)


@dataclass
class Tally:
    """What was found out about some streams."""

    streams: int = 0
    rows: int = 0
    commands: int = 0
    interrupted: int = 0
    deleted: int = 0
    documents: int = 0
    stale: int = 0
    lost: int = 0
    unexpected: int = 0
    wrong_counts: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: value + vars(other)[name] for name, value in vars(self).items()})


def run_stream(stream: Stream, folder: Path) -> Tally:
    """Do a stream to a new index, comparing it with the model after every command."""
    rng = random.Random(f"rows {stream.seed}")
    lexical = LexicalSettings(language="none") if stream.lexical else None
    store = IndexStore.create(
        folder, Manifest.new(VectorSettings(dim=DIM, metric="dot"), lexical=lexical)
    )
    model, tally = Model(), Tally(streams=1)
    cuts = sorted(rng.sample(range(1, stream.rows), stream.n_commands - 1))
    for start, end in zip([0, *cuts], [*cuts, stream.rows], strict=True):
        rows = draw_rows(stream, rng, end - start)
        mode: Mode = "upsert" if rng.random() < 0.8 else "add"
        if rng.random() < stream.interrupt:
            stop_after = rng.randint(0, len(rows) // stream.batch_rows)
            tally.rows += _run(store, stream, rows, mode, model, tally, stop_after)
            tally.interrupted += 1
        tally.rows += _run(store, stream, rows, mode, model, tally)
        tally.commands += 1
        tally.deleted += _delete(store, rng, model)
        _compare(store, model, tally)
    reopened = IndexStore.open(folder)
    _compare(reopened, model, tally)
    _compare_in_full(reopened, model, tally)
    return tally


def _run(
    store: IndexStore,
    stream: Stream,
    rows: Sequence[Document | Reject],
    mode: Mode,
    model: Model,
    tally: Tally,
    stop_after: int | None = None,
) -> int:
    """Run one command and do the same to the model; return the rows that were committed."""
    reader: CorpusReader = Rows(rows, stream.batch_rows, stop_after)
    if stream.from_file and stop_after is None:
        file = written(rows, store.path.with_name("rows.jsonl"))
        reader = CorpusReader([file], on_error="skip", columns=store.snapshot.columns)
    survey = reader.survey()
    with store.writer() as writer:
        watched, counts = Watched(writer), None
        writer.add_columns(survey.columns)
        with suppress(Interrupted):
            counts = ingest(
                watched,
                reader,
                HashingEmbedder(DIM, max_len=4),
                survey=survey,
                mode=mode,
                on_truncate="chunk",
                find_unchanged=partial(writer.unchanged, keeps=cuts_stay(CHUNKS, CHUNKS)),
            ).counts
            writer.settle()
    expected = applied(model, rows[: watched.rows_done], mode)
    tally.wrong_counts += counts is not None and counts != expected
    return watched.rows_done


def _delete(store: IndexStore, rng: random.Random, model: Model) -> int:
    """Sometimes delete documents by id or by their state, sometimes merge all segments."""
    draw = rng.random()
    doomed: list[str] = []
    with store.writer() as writer:
        if draw < 0.1:
            writer.compact()
        elif draw < 0.5 and model:
            doomed = rng.sample(sorted(model), rng.randint(1, len(model) // 3 + 1))
            assert writer.delete([*doomed, "absent"]) == ["absent"]
        elif draw < 0.6 and "state" in store.snapshot.columns:
            doomed = [doc_id for doc_id, text in model.items() if text.split()[0] == "state0"]
            assert writer.delete_where("state = 0") == len(doomed)
    for doc_id in doomed:
        del model[doc_id]
    return len(doomed)


def _compare(store: IndexStore, model: Model, tally: Tally) -> None:
    """Count the documents that are not what the model says, by their ids and content hashes."""
    rows, contents = store.snapshot.find(list(model))
    with_metadata = "state" in store.snapshot.columns
    wanted = np.array([_hash(text, with_metadata) for text in model.values()], np.uint64)
    there = rows >= 0
    tally.unexpected += store.snapshot.n_docs - int(there.sum())
    tally.lost += int((~there).sum())
    tally.stale += int((contents != wanted)[there].sum())


@typed_lru_cache(1 << 16)
def _hash(text: str, with_metadata: bool) -> int:
    metadata = {"state": int(text.split()[0].removeprefix("state"))} if with_metadata else {}
    return hash_content(Document("", text, metadata=metadata))


def _compare_in_full(store: IndexStore, model: Model, tally: Tally) -> None:
    """Count what is wrong with the passages: their documents, what they cover, their vectors."""
    snapshot, embedder = store.snapshot, HashingEmbedder(DIM, max_len=4)
    firsts = snapshot.lookup(list(model))
    rows = snapshot.rows_of(np.sort(firsts[firsts >= 0]))
    tally.documents += len(model)
    tally.unexpected += snapshot.n_rows - len(rows)
    for start in range(0, len(rows), 4096):
        part = rows[start : start + 4096]
        passages = snapshot.fetch(part)
        texts = [p.document.full_text[p.char_start : p.char_end] for p in passages]
        same = (snapshot.vectors(part) == embedder.encode_document(texts)).all(axis=1)
        same &= [model[p.document.doc_id] == p.document.text for p in passages]
        tally.stale += int((~same).sum())
