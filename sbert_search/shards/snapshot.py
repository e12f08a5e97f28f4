"""One state of a sharded index, which is read and searched like one index with all segments.

Row numbers are unique over all shards, so a row alone says which document is meant. They ascend in
the order in which documents were added, so equal scores are ordered as in one index. In an index
made by `assembly.assemble`, they ascend in this order only within each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.lexical.postings import Postings
from sbert_search.index.lexical.vocabulary import WordList
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.storage.segments import Segment
from sbert_search.records import Document
from sbert_search.runtime.disk.folders import Folder
from sbert_search.shards.manifest import ShardManifest

_TOGETHER = 256  # documents that `iter_documents` reads at a time


class UnionManifest(Manifest):
    """The contents of all shards as one manifest; the rows of its segments may interleave."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check nothing: the manifest of each shard was checked when it was read."""

    @classmethod
    def of(cls, generation: int, shards: Sequence[Manifest]) -> UnionManifest:
        """Join the manifests of all shards."""
        first = shards[0]
        return cls(
            generation=generation,
            next_row=max(shard.next_row for shard in shards),
            settings=first.settings,
            columns=reduce(columns_of.merge, (dict(shard.columns) for shard in shards)),
            segments=tuple(segment for shard in shards for segment in shard.segments),
            tombstones=tuple(tombstone for shard in shards for tombstone in shard.tombstones),
            build=first.build,
            tuning=first.tuning,
        )


class ShardedSnapshot(Snapshot):
    """The state of a sharded index after one commit; it has the segments of all shards.

    Args:
        folder: The sharded index.
        record: Its manifest.
        shards: The state of each shard.
    """

    def __init__(self, folder: Folder, record: ShardManifest, shards: Sequence[Snapshot]) -> None:
        self.n_shards = len(shards)
        self.folder, self.record, self.shards = folder, record, tuple(shards)
        self.manifest = UnionManifest.of(record.generation, [s.manifest for s in shards])
        self.segments = [segment for shard in shards for segment in shard.segments]
        self.anns = [ann for shard in shards for ann in shard.anns]
        self._places = [(s, i) for s in shards for i in range(len(s.segments))]
        self._masks, self._distinct = {}, {}
        self._live = [shard.live(i) for shard, i in self._places]
        self._selections = [shard.selection(i) for shard, i in self._places]

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The manifests of the shards, in the order of their numbers."""
        return tuple(shard.manifest for shard in self.shards)

    def with_states(self, shards: Sequence[Snapshot]) -> ShardedSnapshot:
        """Return this state with other states of the shards."""
        return ShardedSnapshot(self.folder, self.record, shards)

    def iter_documents(self) -> Iterator[Document]:
        """Read all live documents, ordered by their rows."""
        parts = [np.empty(0, np.int64)]
        for segment, live in zip(self.segments, self._live, strict=True):
            firsts = segment.chunks == 0
            parts.append(segment.rows[firsts if live is None else firsts & live])
        rows = np.sort(np.concatenate(parts))
        for start in range(0, len(rows), _TOGETHER):
            for passage in self.fetch(rows[start : start + _TOGETHER]):
                yield passage.document

    def live_rows(self) -> NDArray[np.int64]:
        """Return the live rows of all segments, ascending, (n_rows,)."""
        return np.sort(super().live_rows())

    def postings(self, index: int) -> Postings:
        """Return the postings of a segment; the index must have lexical settings."""
        shard, at = self._places[index]
        return shard.postings(at)

    def words(self, index: int) -> WordList | None:
        """Return the words of a segment; None if they are not listed, or the list is damaged."""
        shard, at = self._places[index]
        return shard.words(at)

    def _located(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Segment, NDArray[np.bool_], NDArray[np.int64]]]:
        """Group rows by segment; see `Snapshot._located`."""
        absent = rows >= 0
        if not absent.any():
            return
        low, high = rows[absent].min(), rows.max()
        for segment in self.segments:
            if segment.record.row_start > high or segment.record.row_end <= low:
                continue
            at = segment.positions(rows)
            here = at >= 0
            if here.any():
                absent &= ~here
                yield segment, here, at[here]
        if absent.any():
            raise ValueError(f"{self.path} holds no row {rows[absent][0]}.")
