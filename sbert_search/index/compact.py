"""Merging segments: fewer files, no dead rows, the same rows under the same numbers.

Policy: more than 8 segments, or more than 20 % dead rows, and compaction is advised. A build ends
in one segment per million rows. Rows keep their numbers, so results do not change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.index import ann, ann_build, ids
from sbert_search.index import columns as columns_of
from sbert_search.index.lexical_files import write_lexical
from sbert_search.index.manifest import ColumnType, Manifest, SegmentRecord
from sbert_search.index.segment_writer import SegmentPart, write_segment
from sbert_search.index.segments import BATCH_ROWS, Segment
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.spec import MIN_ANN_ROWS
from sbert_search.index.transaction import Transaction

SEGMENT_ROWS = 1_000_000  # a merge does not grow a segment beyond this
MAX_SEGMENTS = 8
MAX_DEAD = 0.2
MAX_MERGEABLE = 64  # a commit that leaves more merges them, so a long build stays openable

Live = NDArray[np.bool_] | None


def advice(manifest: Manifest) -> str:
    """Say why compaction is advised, or "" when it is not."""
    dead, rows = manifest.n_dead_rows, manifest.n_rows + manifest.n_dead_rows
    if len(manifest.segments) > max(MAX_SEGMENTS, 2 * manifest.n_rows // SEGMENT_ROWS):
        return f"{len(manifest.segments)} segments"
    if dead > MAX_DEAD * rows:
        return f"{dead:,} of {rows:,} rows are dead"
    return ""


def is_overdue(snapshot: Snapshot) -> bool:
    """Whether merging on the way would save at least `MAX_MERGEABLE` segments."""
    n_groups = sum(1 for _ in _groups(snapshot, keep_ann=True))
    return len(snapshot.segments) - n_groups >= MAX_MERGEABLE


def compacted(
    work: Transaction, snapshot: Snapshot, *, max_dead: float = 0.0, keep_ann: bool = False
) -> Manifest:
    """Write merged segments and say what the index then is; commits nothing.

    Args:
        work: The transaction to write in.
        snapshot: The state to compact; its large files are hashed before they are read.
        max_dead: Share of dead rows that a segment may keep when nothing else asks for a rewrite.
        keep_ann: Leave segments that have a FAISS file as they are.

    Raises:
        CorruptIndex: A file is damaged.
        OSError: The disk failed.
    """
    old = snapshot.manifest
    segments: list[SegmentRecord] = []
    kept: list[int] = []
    for group in _groups(snapshot, keep_ann=keep_ann):
        alone, i = len(group) == 1, group[0]
        has_ann = old.segments[i].ann is not None
        if alone and (
            (has_ann and keep_ann) or _dead(snapshot, i) <= max_dead * _rows(snapshot, i)
        ):
            kept.append(i)
            segments.append(old.segments[i])
        elif merged := _merged(work, snapshot, group, old.columns):
            segments.append(merged)
    if len(kept) == len(old.segments):
        return old
    new = dataclasses.replace(old, segments=tuple(segments), tombstones=())
    return _with_dead_of(work, snapshot, kept, new)


def with_ann(
    work: Transaction, snapshot: Snapshot, new: Manifest, *, memory_bytes: int | None = None
) -> Manifest:
    """Make the FAISS file of every large segment that has none.

    Args:
        work: The transaction to write in.
        snapshot: An earlier state whose trained FAISS index, if there is one, is used again.
        new: The manifest to change.
        memory_bytes: What FAISS may take; None: no limit.

    Raises:
        ConfigError: A segment's FAISS index would not fit the budget.
    """
    if new.settings.spec.is_flat or all(s.ann or s.n_rows < MIN_ANN_ROWS for s in new.segments):
        return new
    opened = [Segment(work.path, record, new.settings) for record in new.segments]
    ann_build.require_memory(new.settings, max(s.n_rows for s in new.segments), memory_bytes)
    same = snapshot.settings.spec.factory == new.settings.spec.factory
    empty = (_trained_before(snapshot) if same else None) or ann_build.train(
        [s.vectors for s in opened], new.settings, memory_bytes
    )
    if empty is None:
        return new
    made = []
    for segment in opened:
        record = segment.record
        if record.ann is None and record.n_rows >= MIN_ANN_ROWS:
            file = ann_build.write(work.path, work.number(), empty, segment.vectors)
            record = dataclasses.replace(record, ann=file)
        made.append(record)
    return dataclasses.replace(new, segments=tuple(made))


def _with_dead_of(
    work: Transaction, snapshot: Snapshot, kept: Sequence[int], new: Manifest
) -> Manifest:
    """Gather the tombstones of segments that stay as they are into one file."""
    marked = [(snapshot.segments[i], live) for i in kept if (live := snapshot.live(i)) is not None]
    if not marked:
        return new
    rows = np.concatenate([segment.rows[~live] for segment, live in marked])
    n_docs = sum(int((segment.chunks[~live] == 0).sum()) for segment, live in marked)
    return dataclasses.replace(new, tombstones=(work.write_tombstones(rows, n_docs),))


def _trained_before(snapshot: Snapshot) -> Any | None:
    indexes = (found.index for found in snapshot.anns if found)
    index = next((index for index in indexes if index is not None), None)
    if index is None:
        return None
    empty = ann.import_faiss().clone_index(index)
    empty.reset()
    return empty


def _groups(snapshot: Snapshot, *, keep_ann: bool) -> Iterator[list[int]]:
    """Yield neighbouring segments that fit into one; with ``keep_ann`` FAISS's stand alone."""
    group: list[int] = []
    size = 0
    for i, record in enumerate(snapshot.manifest.segments):
        n_live = _rows(snapshot, i) - _dead(snapshot, i)
        if keep_ann and record.ann:
            n_live = SEGMENT_ROWS + 1  # too full for either neighbour
        if group and size + n_live > SEGMENT_ROWS:
            yield group
            group, size = [], 0
        group.append(i)
        size += n_live
    if group:
        yield group


def _merged(
    work: Transaction,
    snapshot: Snapshot,
    group: Sequence[int],
    columns: Mapping[str, ColumnType],
) -> SegmentRecord | None:
    """Write the live rows of some segments as one; None when there are none."""
    sources = [(snapshot.segments[i], snapshot.live(i)) for i in group]
    for segment, _ in sources:
        segment.verify()
    tables = [_live_ids(segment, live) for segment, live in sources]
    n_rows = sum(segment.n_rows if live is None else int(live.sum()) for segment, live in sources)
    if n_rows == 0:
        return None
    record = write_segment(
        work.path,
        work.number(),
        (part for segment, live in sources for part in _parts(segment, live, columns)),
        table=ids.make_table(*np.concatenate(tables, axis=1)),
        n_rows=n_rows,
        settings=snapshot.manifest.settings,
        columns=columns,
    )
    if snapshot.settings.lexical is None:
        return record
    postings = [(snapshot.postings(i), snapshot.live_docs(i)) for i in group]
    lexical = write_lexical(work.path, work.number(), postings)
    return dataclasses.replace(record, lexical=lexical)


def _parts(
    segment: Segment, live: Live, columns: Mapping[str, ColumnType]
) -> Iterator[SegmentPart]:
    """Read the live rows of a segment, a batch at a time."""
    schema = columns_of.schema(columns)
    for start in range(0, segment.n_rows, BATCH_ROWS):
        batch = segment.batch(start // BATCH_ROWS)
        vectors = segment.vectors[start : start + BATCH_ROWS]
        if live is not None:
            marks = live[start : start + BATCH_ROWS]
            batch, vectors = batch.filter(pa.array(marks)), vectors[marks]
        if batch.num_rows:
            yield SegmentPart(_conformed(pa.Table.from_batches([batch]), schema), vectors)


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give a table the columns of a schema: missing ones are null, integers widen to floats."""
    there = set(table.schema.names)
    arrays = [
        table.column(field.name).cast(field.type)
        if field.name in there
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema)


def _live_ids(segment: Segment, live: Live) -> ids.IdTable:
    if live is None:
        return segment.ids
    return segment.ids[:, live[segment.positions(segment.ids[1].astype(np.int64))]]


def _rows(snapshot: Snapshot, index: int) -> int:
    return snapshot.segments[index].n_rows


def _dead(snapshot: Snapshot, index: int) -> int:
    live = snapshot.live(index)
    return 0 if live is None else int((~live).sum())
