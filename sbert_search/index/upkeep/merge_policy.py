"""The merge policy: which segments to rewrite, so that an index stays fast and small after updates.

A segment is an immutable set of files for consecutive rows. A dead row is the row of a deleted or
replaced document; the other rows are live. An update ends with these merges:

- A segment with more than 20 % dead rows is rewritten without them. Files therefore stay below 1.25
  times the size of the live rows. If all later segments have at most as many live rows, they are
  merged with it: to write them once more now costs less than merging them step by step later.
- If more than 4 small segments (at most half a million live rows each) follow the last segment that
  has a FAISS file, the newest are merged. The merge goes back until it meets a segment that holds
  at least twice as many live rows as all segments after it. Merges thus rewrite a row about
  log2(rows / rows of an update) times. A row is also rewritten once for every fifth of its segment
  that dies.
- If more than 1 % of the rows, or 50,000, are outside FAISS files, the segments after the last one
  that has a FAISS file are merged. This merge goes back by the same rule, also over segments that
  have FAISS files. All segments without a FAISS file then get one, filled from the trained index of
  the others; the first one is trained. An index with fewer than 50,000 rows, or too few to train,
  gets no FAISS file. For one of n shards, both limits are 50,000 / n.

A merged segment has at most a million rows. Only segments with vectors in the same sets are merged,
so that a migration embeds no row twice.

docs/decisions.md: Updates merge segments when they end.

Source: Bentley & Saxe 1980, Decomposable searching problems I (the logarithmic method), section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sbert_search.index.settings import MIN_ANN_ROWS
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest

SEGMENT_ROWS = 1_000_000  # largest number of rows of a merged segment
MAX_SEGMENTS = 4  # if more small segments are left after an update, the newest are merged
MAX_DEAD = 0.2  # largest share of dead rows in a segment
MAX_SCANNED = 0.01  # largest share of the rows outside FAISS files
MAX_TOMBSTONES = 32  # largest number of tombstone files, which list dead rows
MIN_REMOVED = 64  # a commit merges if this removes at least 64 segments, to limit open files
ADVISED_SEGMENTS = 16  # compact is advised above this number plus one per half million live rows


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring segments that are merged into one, from ``start`` up to but without ``stop``."""

    start: int
    stop: int

    @property
    def members(self) -> range:
        """Indexes of the segments."""
        return range(self.start, self.stop)


@dataclass(frozen=True, slots=True)
class _Part:
    n_rows: int
    n_live: int
    has_ann: bool

    @property
    def too_dead(self) -> bool:
        return self.n_rows - self.n_live > MAX_DEAD * self.n_rows


def advice(snapshot: Snapshot) -> str:
    """Return the reason to compact an index, or "".

    Shards are compacted one by one, so the limits hold for each of them.
    """
    for number, part in enumerate(snapshot.parts):
        manifest = part.manifest
        where = f" in shard {number}" if snapshot.n_shards > 1 else ""
        dead, rows = manifest.n_dead_rows, manifest.n_rows + manifest.n_dead_rows
        if len(manifest.segments) > ADVISED_SEGMENTS + 2 * manifest.n_rows // SEGMENT_ROWS:
            return f"{len(manifest.segments)} segments{where}"
        if dead > MAX_DEAD * rows:
            return f"{dead:,} of {rows:,} rows{where} are dead"
    return ""


def lacks_ann(manifest: Manifest, n_shards: int = 1) -> bool:
    """Whether too many rows are in segments without a FAISS file, which all get one then."""
    stored = [(segment.n_rows, segment.vectors[manifest.active]) for segment in manifest.segments]
    n_rows = sum(rows for rows, _ in stored)
    outside = sum(rows for rows, vectors in stored if vectors.ann is None)
    least = MIN_ANN_ROWS / n_shards  # since a query scans all shards
    much = outside >= least or outside > MAX_SCANNED * n_rows
    return not manifest.settings.spec.is_flat and n_rows >= least and much


def update_lacks_ann(manifest: Manifest, n_shards: int) -> bool:
    """Whether an update makes FAISS files: `lacks_ann`, and there are enough rows to train."""
    n_rows = sum(segment.n_rows for segment in manifest.segments)
    trains = manifest.faiss_files or n_rows >= manifest.settings.spec.min_training_rows
    return bool(trains) and lacks_ann(manifest, n_shards)


def groups_for_compaction(snapshot: Snapshot) -> list[Group]:
    """Choose groups that leave one segment per million live rows and no dead rows."""
    parts = _parts(snapshot)
    return [
        group
        for group in _alike(snapshot, _neighbours(parts, stand_alone=[False] * len(parts)))
        if len(group.members) > 1 or parts[group.start].n_live < parts[group.start].n_rows
    ]


def groups_after_commit(snapshot: Snapshot) -> list[Group]:
    """Choose groups to merge after one commit of a build or update, if that removes many segments.

    Otherwise merging waits for its end. Segments with a FAISS file are not rewritten.
    """
    parts = _parts(snapshot)
    alone = [part.has_ann for part in parts]
    groups = list(_alike(snapshot, _neighbours(parts, stand_alone=alone)))
    if len(parts) - len(groups) < MIN_REMOVED:
        return []
    merged = [group for group in groups if len(group.members) > 1]
    return _in_order([*merged, *_too_dead(parts, merged, and_ann=False)])


def groups_after_update(snapshot: Snapshot, n_shards: int = 1) -> list[Group]:
    """Choose groups to merge at the end of an update, as the docstring of this module describes."""
    parts = _parts(snapshot)
    tail = max([i + 1 for i, part in enumerate(parts) if part.has_ann], default=0)
    small = [i for i in range(tail, len(parts)) if parts[i].n_live <= SEGMENT_ROWS // 2]
    if update_lacks_ann(snapshot.manifest, n_shards):
        start = _tier(parts, tail, first=0)
    elif len(small) > MAX_SEGMENTS:
        start = _tier(parts, len(parts) - 1, first=tail)
    else:
        start = len(parts)
    start = _with_dead(parts, start)
    groups = _neighbours(parts[start:], stand_alone=[False] * (len(parts) - start))
    merged = [Group(start + group.start, start + group.stop) for group in groups]
    merged = [group for group in _alike(snapshot, merged) if len(group.members) > 1]
    return _in_order([*merged, *_too_dead(parts, merged, and_ann=True)])


def _tier(parts: Sequence[_Part], start: int, first: int) -> int:
    """Go back from ``start``, at most to ``first``, to where a merge of the last segments begins.

    The segment before it has at least twice as many live rows as all later ones, or does not fit.
    """
    size = sum(part.n_live for part in parts[start:])
    while start > first:
        older = parts[start - 1].n_live
        if older >= 2 * size or older + size > SEGMENT_ROWS:
            break
        start, size = start - 1, size + older
    return start


def _with_dead(parts: Sequence[_Part], start: int) -> int:
    """Go back from ``start`` to a segment with too many dead rows that takes all later ones in."""
    for i, part in enumerate(parts[:start]):
        later = sum(other.n_live for other in parts[i + 1 :])
        if part.too_dead and later <= min(part.n_live, SEGMENT_ROWS - part.n_live):
            return i
    return start


def _too_dead(parts: Sequence[_Part], merged: Sequence[Group], *, and_ann: bool) -> list[Group]:
    """Choose the segments with too many dead rows that are in no ``merged`` group."""
    taken = {i for group in merged for i in group.members}
    return [
        Group(i, i + 1)
        for i, part in enumerate(parts)
        if i not in taken and part.too_dead and (and_ann or not part.has_ann)
    ]


def _neighbours(parts: Sequence[_Part], stand_alone: Sequence[bool]) -> Iterator[Group]:
    """Split segments into runs whose live rows fit into one segment, or that must stand alone."""
    start, size = 0, 0
    for i, part in enumerate(parts):
        n_live = SEGMENT_ROWS + 1 if stand_alone[i] else part.n_live  # never fits with others
        if i > start and size + n_live > SEGMENT_ROWS:
            yield Group(start, i)
            start, size = i, 0
        size += n_live
    if parts:
        yield Group(start, len(parts))


def _alike(snapshot: Snapshot, groups: Iterable[Group]) -> Iterator[Group]:
    """Split groups where their segments have vectors in different sets, during a migration.

    The segment that a migration is working on stays alone.
    """
    manifest = snapshot.manifest
    docs = manifest.filling.docs if manifest.filling else ""
    kinds = [(r.vectors.keys(), r.docs.name == docs) for r in manifest.segments]
    for group in groups:
        start = group.start
        for i in group.members[1:]:
            if kinds[i] != kinds[i - 1]:
                yield Group(start, i)
                start = i
        yield Group(start, group.stop)


def _in_order(groups: Sequence[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: group.start)


def _parts(snapshot: Snapshot) -> list[_Part]:
    active = snapshot.manifest.active
    return [
        _Part(record.n_rows, snapshot.n_live(i), record.vectors[active].ann is not None)
        for i, record in enumerate(snapshot.manifest.segments)
    ]
