"""One state of a sharded index, read and searched like one index with the segments of all shards.

A row number, which identifies a passage, is unique over all shards. Row numbers ascend in the order
in which documents were added. Results with equal scores are sorted by row number, so they have the
same order as in an index without shards. In an index made by `assembly.assemble`, row numbers
follow the order of addition only within each of the joined parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.folders import Folder
from sbert_search.index.lexical.postings import Postings
from sbert_search.index.lexical.vocabulary import WordList
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.storage.segments import Segment
from sbert_search.records import Document
from sbert_search.shards.manifest import ShardManifest

_TOGETHER = 256  # documents that `iter_documents` reads at a time


class UnionManifest(Manifest):
    """The manifests of all shards as one manifest; the rows of its segments may interleave."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Skip the checks of `Manifest`, which do not allow segments with interleaved rows.

        Each manifest of a shard has passed these checks.
        """

    @classmethod
    def of(cls, generation: int, shards: Sequence[Manifest]) -> UnionManifest:
        """Join the manifests of all shards.

        Args:
            generation: Number of commits of the sharded index so far.
            shards: The manifests. Settings, build and tuning are taken from the first one.
        """
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
        folder: The folder of the sharded index.
        record: The content of ``shards.json``.
        shards: The state of each shard, in the order of their numbers.
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
        """Return a copy of this state in which the shards have the given states."""
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
        """Return the postings (inverted index) of the segment ``self.segments[index]``.

        The settings of the sharded index must include lexical search.
        """
        shard, at = self._places[index]
        return shard.postings(at)

    def words(self, index: int) -> WordList | None:
        """Return the words of the segment ``self.segments[index]``.

        None: the segment has no list of its words, or the list is damaged.
        """
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
