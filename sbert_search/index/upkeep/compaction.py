"""Merging segments into fewer, without deleted and replaced (dead) rows.

`merge_policy` chooses the segments; this module rewrites them. Live rows keep their numbers. Among
hits with equal scores, the lower row comes first, so the results of exact searches do not change.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.base.progress import Advance, progress
from sbert_search.index.dense import faiss_build
from sbert_search.index.dense.faiss_runtime import FaissIndex
from sbert_search.index.lexical.postings import Live, count_terms, texts_of, write_lexical
from sbert_search.index.lexical.vocabulary import WordList, lists_words
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import ids
from sbert_search.index.storage import segments as npy
from sbert_search.index.storage.manifest import ColumnType, Manifest, SegmentRecord
from sbert_search.index.storage.segment_writer import SegmentPart, write_segment
from sbert_search.index.storage.segments import BATCH_ROWS, Segment, open_checked
from sbert_search.index.storage.transaction import Transaction
from sbert_search.index.upkeep.merge_policy import Group, lacks_ann

BATCH_BYTES = 64 << 20  # bytes of rows that are written together
PIECE_BYTES = 16 << 20  # bytes of rows that are read together
WORK_BYTES = 192 << 20  # memory of a merge: rows that are read and written, and postings


def merge_segments(work: Transaction, snapshot: Snapshot, groups: Sequence[Group]) -> Manifest:
    """Write merged segments and return the new manifest, without committing it.

    ``groups`` are in the order of their rows. The large files of merged segments are hashed first.
    If any dead rows are kept, one new tombstone lists them all.
    """
    old = snapshot.manifest
    heads = {group.start: group for group in groups}
    inside = {i for group in groups for i in group.members}
    segments: list[SegmentRecord] = []
    for i, record in enumerate(old.segments):
        if group := heads.get(i):
            members = (old.segments[at] for at in group.members)
            with work.packed(sum(file.size_bytes for r in members for file in r.files)):
                merged = _merged(work, snapshot, group)
            segments += [merged] if merged else []
        if i not in inside:
            segments.append(record)
    new = dataclasses.replace(old, segments=tuple(segments), tombstones=())
    kept = [i for i in range(len(old.segments)) if i not in inside]
    return _with_dead_of(work, snapshot, kept, new)


def written(
    work: Transaction,
    new: Manifest,
    part: SegmentPart,
    table: ids.IdTable,
    extended: Snapshot | None,
) -> SegmentRecord:
    """Write new rows, whose id table is ``table``, as a segment.

    The last segment of ``extended`` is written again before them; all its rows must be live.
    """
    parts, columns = [part], new.columns
    if extended:
        older = extended.segments[-1]
        older.verify()
        parts = [*_parts(older, None, columns), part]
        table = ids.make_table(*np.concatenate([older.ids, table], axis=1))
    record = write_segment(
        work,
        parts,
        table=table,
        n_rows=sum(len(part.vectors) for part in parts),
        manifest=new,
        others=part.others.keys(),
    )
    if new.lexical is None:
        return record
    counted: Counter[str] | None = Counter() if lists_words(record.n_docs) else None
    lexical = write_lexical(
        work,
        [(count_terms(texts_of(p.docs), new.lexical, counted), None) for p in parts],
        None if counted is None else [WordList.of(counted)],
    )
    return record.with_lexical(lexical)


def with_ann(
    work: Transaction,
    snapshot: Snapshot,
    new: Manifest,
    *,
    retrain: bool = False,
    n_shards: int = 1,
) -> Manifest:
    """Build the FAISS files that an index lacks, or with ``retrain`` all of them.

    A trained index of ``snapshot`` with the same factory string is used again, if there is one.
    ConfigError if an index does not fit the memory limit.
    """
    if retrain:
        new = new.without([file.name for file in new.faiss_files])
    if not lacks_ann(new, n_shards):
        return new
    opened = [Segment(work.folder, record, new) for record in new.segments]
    lacking = [segment for segment in opened if segment.stored.ann is None]
    faiss_build.require_memory(new.settings, max(segment.n_rows for segment in lacking))
    same = snapshot.settings.spec.factory == new.settings.spec.factory and not retrain
    trained = _trained_before(snapshot) if same else None
    empty = trained[0] if trained else faiss_build.train([s.vectors for s in opened], new.settings)
    if empty is None:
        return new
    records = []
    for segment in opened:
        record = segment.record
        if segment in lacking:
            filled = _filled_before(snapshot, segment, trained[1]) if trained else []
            file = faiss_build.write(work, empty, segment.vectors, filled)
            record = record.with_ann(new.active, file)
        records.append(record)
    return dataclasses.replace(new, segments=tuple(records))


def _with_dead_of(
    work: Transaction, snapshot: Snapshot, kept: Sequence[int], new: Manifest
) -> Manifest:
    """Gather the tombstones of segments that keep their dead rows into one file."""
    dead = [(snapshot.segments[i], live) for i in kept if (live := snapshot.live(i)) is not None]
    if not dead:
        return new
    rows = np.concatenate([segment.rows[~live] for segment, live in dead])
    n_docs = sum(int((segment.chunks[~live] == 0).sum()) for segment, live in dead)
    return dataclasses.replace(new, tombstones=(work.write_tombstones(rows, n_docs),))


def _trained_before(snapshot: Snapshot) -> tuple[FaissIndex, bytes] | None:
    """Return an emptied copy of a trained FAISS index of a state, and its hash `centroids`."""
    for ann in sorted(filter(None, snapshot.anns), key=lambda ann: ann.record.size_bytes):
        if (empty := ann.read(mapped=False)) is not None:
            empty.reset()
            return empty, ann.centroids
    return None


def _filled_before(
    snapshot: Snapshot, segment: Segment, centroids: bytes
) -> list[faiss_build.Filled]:
    """Return the FAISS indexes of a state from which lists of a merged segment can be copied."""
    filled = []
    for older, ann in zip(snapshot.segments, snapshot.anns, strict=True):
        if older.record.docs == segment.record.docs or not ann or ann.index is None:
            continue  # the file of the same segment was dropped since it is damaged
        if centroids and ann.centroids == centroids:
            positions = segment.positions(older.rows)
            if (positions >= 0).any():
                filled.append((ann.index, positions))
    return filled


def _merged(work: Transaction, snapshot: Snapshot, group: Group) -> SegmentRecord | None:
    """Write the rows of some segments as one segment; None when no row is left."""
    columns = snapshot.columns
    sources = [(snapshot.segments[i], snapshot.live(i)) for i in group.members]
    for segment, _ in sources:
        segment.verify()
    others = [_other_vectors(work, snapshot.manifest.segments[i]) for i in group.members]
    tables = [_live_ids(segment, live) for segment, live in sources]
    n_rows = sum(segment.n_rows if live is None else int(live.sum()) for segment, live in sources)
    if n_rows == 0:
        return None
    with progress("Merging segments", n_rows, "passages") as advance:
        record = write_segment(
            work,
            _counted(
                chain.from_iterable(
                    _parts(segment, live, columns, own)
                    for (segment, live), own in zip(sources, others, strict=True)
                ),
                advance,
            ),
            table=ids.make_table(*np.concatenate(tables, axis=1)),
            n_rows=n_rows,
            manifest=snapshot.manifest,
            batch_rows=_batch_rows([segment for segment, _ in sources]),
            others=others[0].keys(),
        )
    if snapshot.manifest.lexical is None:
        return record
    postings = [(snapshot.postings(i), snapshot.live_docs(i)) for i in group.members]
    words = None
    if lists_words(record.n_docs):
        lists = [snapshot.words(i) for i in group.members]
        known = [words for words in lists if words is not None]
        words = known if len(known) == len(lists) else None
    lexical = write_lexical(work, postings, words, snapshot.manifest.lexical)
    return record.with_lexical(lexical)


def _parts(
    segment: Segment,
    live: Live,
    columns: Mapping[str, ColumnType],
    others: Mapping[str, NDArray[np.floating]] = MappingProxyType({}),
) -> Iterator[SegmentPart]:
    """Read the live rows of a segment, piece by piece, with ``others``, vectors of other sets."""
    schema = columns_of.schema(columns)
    for start, batch in _pieces(segment):
        rows = slice(start, start + batch.num_rows)
        vectors, more = segment.vectors[rows], {name: own[rows] for name, own in others.items()}
        if live is not None:
            marks = live[rows]
            batch, vectors = batch.filter(pa.array(marks)), vectors[marks]
            more = {name: own[marks] for name, own in more.items()}
        docs = _conformed(pa.Table.from_batches([batch]), schema)
        part = SegmentPart(docs, vectors, others=more)
        del batch, vectors, docs, more
        if len(part.vectors):
            yield part
        del part  # frees its memory before the next part is read


def _other_vectors(
    work: Transaction, record: SegmentRecord, *, hash_all: bool = True
) -> dict[str, NDArray[np.floating]]:
    """Open the vectors of a segment in the sets that are not in use, and check their hashes.

    Without ``hash_all``, large files are not hashed.
    """
    opened = {}
    for name in record.vectors.keys() - {work.old.active}:
        file, settings = record.vectors[name].file, work.old.vectors[name]
        most = file.size_bytes if hash_all else npy.HASH_AT_OPEN_BYTES
        view = open_checked(work.folder, file, hash_up_to=most)
        opened[name] = npy.read(view, file.name, settings.dtype, (record.n_rows, settings.dim))
    return opened


def other_vectors_at(
    work: Transaction, snapshot: Snapshot, rows: NDArray[np.int64]
) -> dict[str, NDArray[np.floating]]:
    """Read the vectors of live rows in the sets that are not in use; {}: a row is not live.

    Sets that lack one of the rows are left out.
    """
    names = work.old.vectors.keys() - {work.old.active}
    if not (names and len(rows) and np.isin(rows, snapshot.live_rows()).all()):
        return {}
    found: dict[str, NDArray[np.floating]] = {}
    for name in names:
        settings = work.old.vectors[name]
        found[name] = np.empty((len(rows), settings.dim), settings.dtype)
    for segment, here, at in snapshot.located(rows):
        record = work.old.segments[snapshot.segments.index(segment)]
        opened = _other_vectors(work, record, hash_all=False)
        found = {name: vectors for name, vectors in found.items() if name in opened}
        for name, vectors in found.items():
            vectors[here] = opened[name][at]
    return found


def _counted(parts: Iterable[SegmentPart], advance: Advance) -> Iterator[SegmentPart]:
    for part in parts:
        n_rows = len(part.vectors)
        yield part
        del part  # frees its memory before the next part is read
        advance(n_rows)


def _pieces(segment: Segment) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of a segment, large ones in slices, each with its first position."""
    for start in range(0, segment.n_rows, segment.batch_rows):
        batch = segment.batch(start // segment.batch_rows)
        step = max(1, PIECE_BYTES * batch.num_rows // max(1, batch.nbytes))
        for at in range(0, batch.num_rows, step):
            yield start + at, batch.slice(at, step)


def _batch_rows(segments: Sequence[Segment]) -> int:
    """Choose the rows per batch so that no batch takes much more memory than `BATCH_BYTES`.

    Dead rows are counted as if they were written.
    """
    pieces = [piece for segment in segments for _, piece in _pieces(segment)]
    ends = np.cumsum([piece.num_rows for piece in pieces])
    taken = np.cumsum([0, *(piece.nbytes for piece in pieces)])
    # Even a batch of few rows may touch two pieces, which may be larger than the limit.
    allowed = max(BATCH_BYTES, 2 * max(np.diff(taken), default=0))
    n_rows = BATCH_ROWS
    while n_rows > 1:
        starts = np.arange(0, ends[-1], n_rows)
        first = np.searchsorted(ends, starts, "right")
        last = np.searchsorted(ends, np.minimum(starts + n_rows, ends[-1]), "left")
        if (taken[last + 1] - taken[first]).max() <= allowed:
            break
        n_rows //= 2
    return n_rows


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of a schema: new ones are null, int64 may become float64.

    Arrow's check of casts to float64 is off, because it refuses all integers beyond 2**53. The
    casts round nothing: a column becomes float64 only if that holds all its integers exactly.
    """
    present = set(table.schema.names)
    arrays = [
        table.column(field.name).cast(field.type, safe=field.type != pa.float64())
        if field.name in present
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema)


def _live_ids(segment: Segment, live: Live) -> ids.IdTable:
    if live is None:
        return segment.ids
    return segment.ids[:, live[segment.firsts_of(slice(None))]]
