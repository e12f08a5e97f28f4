"""One state of a sharded index, read and searched like one index with all segments.

A row number, which identifies a passage, is unique over all shards. Row numbers ascend in the order
in which documents were added. Results with equal scores are sorted by row number, so they have the
same order as in an index without shards. In an index made by `store.assemble`, row numbers follow
the order of addition only within each of the joined parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.base.folders import Folder
from sbert_search.errors import CorruptIndex, IndexStoreError
from sbert_search.index.lexical.postings import Postings
from sbert_search.index.lexical.vocabulary import WordList
from sbert_search.index.shards import manifest as shard_manifests
from sbert_search.index.shards.manifest import ShardManifest, ShardRecord
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.storage.segments import Segment
from sbert_search.records import Document

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
        """Join the manifests of all shards; settings, build and tuning are those of the first."""
        first = shards[0]
        return cls(
            generation=generation,
            next_row=max(shard.next_row for shard in shards),
            active=first.active,
            vectors=first.vectors,
            postings=first.postings,
            query_models=first.query_models,
            columns=reduce(columns_of.merge, (dict(shard.columns) for shard in shards)),
            segments=tuple(segment for shard in shards for segment in shard.segments),
            tombstones=tuple(tombstone for shard in shards for tombstone in shard.tombstones),
            build=first.build,
            tuning=first.tuning,
        )


class ShardedSnapshot(Snapshot):
    """The state of a sharded index after one commit, with the segments of all shards, by number."""

    is_sharded = True

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
        """Return the postings of a segment; the index must have lexical settings."""
        shard, at = self._places[index]
        return shard.postings(at)

    def words(self, index: int) -> WordList | None:
        """Return the words of a segment; None if its word list is absent or damaged."""
        shard, at = self._places[index]
        return shard.words(at)

    def _located(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Segment, NDArray[np.bool_], NDArray[np.int64]]]:
        """Group rows by segment as `Snapshot` does, though the rows of segments may interleave."""
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


NEXT = "NEXT.json"
"""The file with the manifest that a shard gets with the next commit of the sharded index.

The file is durable before the commit. After the commit it is renamed to ``MANIFEST.json``. A state
can be read at any time, since one of the two files is the manifest that shards.json names.
"""

_SAME = ("identity", "dim", "metric", "dtype", "spec")  # settings equal in all shards


class StaleShard(CorruptIndex):
    """A shard has no manifest with the hash that shards.json names."""

    def __init__(self, folder: Folder, record: ShardRecord) -> None:
        super().__init__(
            f"{folder.path}/{manifests.NAME}",
            f"the manifest of commit {record.generation}, which {shard_manifests.NAME} names",
            "that of another commit",
            "The shard was changed or restored on its own. Restore the whole sharded index from a "
            "backup, or build it again.",
        )


def in_shard(folder: str, error: CorruptIndex) -> CorruptIndex:
    """Put the folder of the shard before the name of the damaged file in an error."""
    return CorruptIndex(f"{folder}/{error.file}", error.expected, error.got, error.remedy)


@contextlib.contextmanager
def naming_shard(record: ShardRecord) -> Iterator[None]:
    """Put the folder of the shard before the file name in each `CorruptIndex` of the context."""
    try:
        yield
    except StaleShard:  # has the full path already, and `store.open_state` must recognise it
        raise
    except CorruptIndex as error:
        raise in_shard(record.folder, error) from error


def open_shard(root: Folder, record: ShardRecord) -> Folder:
    """Open the folder of a shard."""
    try:
        return (root / record.folder).opened()
    except OSError as error:
        if not files.is_fault_of_file(error):
            raise IndexStoreError(f"{root / record.folder} cannot be read: {error}.") from error
        remedy = "Restore the folder from a backup, or build the index again."
        place = str(root / record.folder)
        raise CorruptIndex(place, "the folder of a shard", str(error), remedy) from error


def read_shard(folder: Folder, record: ShardRecord) -> Manifest:
    """Read the manifest of a shard that has the hash in ``record``; `StaleShard` if none has."""
    # MANIFEST.json is read again, since a commit may rename NEXT.json to it between two reads.
    for name in (manifests.NAME, NEXT, manifests.NAME):
        if (data := read_bytes(folder, name))[:64] == record.sha256.encode():
            return manifests.decode(data)
    raise StaleShard(folder, record)


def read_bytes(folder: Folder, name: str) -> bytes:
    """Read a manifest of a shard; return ``b""`` if the file is absent or damaged."""
    try:
        return bytes(files.map_file(folder / name)[: manifests.MAX_BYTES + 1])
    except OSError as error:
        if not files.is_fault_of_file(error):
            raise IndexStoreError(f"{folder / name} cannot be read: {error}.") from error
        return b""


def open_snapshots(
    root: Folder,
    manifest: ShardManifest,
    reuse: tuple[ShardManifest, Sequence[Snapshot]] | None = None,
) -> list[Snapshot]:
    """Open the states of all shards, with the open files of ``reuse``; refuse unlike shards."""
    known = dict(zip(reuse[0].shards, reuse[1], strict=True)) if reuse else {}
    earlier = {r.folder: s for r, s in known.items()}
    shards = []
    for record in manifest.shards:
        shards.append(known.get(record) or open_snapshot(root, record, earlier.get(record.folder)))
    require_alike(root.path, shards)
    return shards


def open_snapshot(
    root: Folder, record: ShardRecord, reuse: Snapshot | None, manifest: Manifest | None = None
) -> Snapshot:
    """Open the state of one shard, with the open files of ``reuse`` if its folder is the same."""
    folder = open_shard(root, record)
    same = reuse is not None and reuse.folder.identity == folder.identity
    with naming_shard(record):
        return Snapshot(folder, manifest or read_shard(folder, record), reuse if same else None)


def require_alike(path: Path, shards: Sequence[Snapshot]) -> None:
    """Refuse shards that were built with different models or settings."""
    first = _shared_settings(shards[0])
    for shard in shards[1:]:
        for name, value in _shared_settings(shard).items():
            if value != first[name]:
                raise IndexStoreError(
                    f"{path}: {shard.path} is a shard of another index: its {name} differs from "
                    f"that of {shards[0].path}. Restore the shard from a backup, or build the "
                    "sharded index again."
                )


def _shared_settings(shard: Snapshot) -> dict[str, object]:
    own = {name: getattr(shard.settings, name) for name in _SAME}
    return {**own, "lexical": shard.manifest.lexical, "active": shard.manifest.active}


def is_sharded(path: str | Path) -> bool:
    """Whether a folder holds a sharded index."""
    return (Path(path) / shard_manifests.NAME).is_file()
