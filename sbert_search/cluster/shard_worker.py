"""The object in a process that holds shards: it opens them by path and searches them.

Ray may restart the process at any time. Calls then raise `UnknownCommit` until the caller lets the
process open the commit again.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.folders import Folder
from sbert_search.cluster.connection import host_and_python
from sbert_search.errors import ClusterError, ConfigError, SbertSearchError
from sbert_search.index.dense.faiss_runtime import require_faiss
from sbert_search.index.dense.query_plan import RowMask
from sbert_search.index.lexical.bm25 import LexicalSearch, Matches, WeighedTerms
from sbert_search.index.shards.manifest import ShardManifest, ShardRecord, UnionManifest
from sbert_search.index.shards.opening import open_snapshot
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import ColumnType, Manifest
from sbert_search.records import Where

K = TypeVar("K")
V = TypeVar("V")

STATES_KEPT = 2  # states of an index that stay open: searches may still use the previous one
COMMITS_KEPT = 16
PARTS_KEPT = 16  # sets of shards, with the masks and norms that were computed for them


class ShardedCommit(NamedTuple):
    """A commit of a sharded index, which each process opens by its path.

    The manifests are sent, because the folder has those of the newest commit only. An older commit
    can be opened as long as its files exist. A compaction removes files, and so does an update that
    merges segments.
    """

    key: str  # a text that no other commit has
    path: str  # the folder of the index
    record: ShardManifest  # the manifest of the commit
    manifests: tuple[Manifest, ...]  # of each shard
    # Of all shards; a single shard may lack a column, or have it with a narrower type.
    columns: dict[str, ColumnType]
    versions: str  # that the process must have, see `host_and_python`


class UnknownCommit(Exception):  # noqa: N818 (not an error of the user)
    """The process has not opened the shards of the commit, which `ShardWorker.open` must do first.

    Other calls open no files, so that they take no longer than a search.
    """


SentMask: TypeAlias = str | list[NDArray[np.uint8]] | None
"""A filter over the metadata; or the admitted rows of each segment, as packed bits; or all rows."""


class ShardWorker:
    """Searches some shards of an index; threads may call it while another one opens shards."""

    def __init__(self) -> None:
        self._opening = Lock()  # held while files are opened
        self._lock = Lock()
        self._snapshots: dict[tuple[str, str], dict[ShardRecord, Snapshot]] = {}
        self._commits: dict[str, tuple[ShardedCommit, Folder]] = {}
        self._parts: dict[tuple[str, tuple[int, ...]], _Part] = {}

    def host(self) -> str:
        """Return the name of the machine."""
        return host_and_python()[0]

    def open(self, commit: ShardedCommit, shards: tuple[int, ...]) -> list[str]:
        """Open some shards of a commit, which other calls name by its key.

        Returns warnings about files that this process does without, with the name of its machine.
        """
        with self._opening, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            root, opened = self._opened(commit, shards)
        with self._lock:
            _keep(self._commits, commit.key, (commit, root), COMMITS_KEPT)
            for number, snapshot in zip(shards, opened, strict=True):
                record = commit.record.shards[number]
                kept = self._snapshots.setdefault((commit.path, record.folder), {})
                _keep(kept, record, snapshot, STATES_KEPT)
            paths = {known.path for known, _ in self._commits.values()}
            self._snapshots = {at: kept for at, kept in self._snapshots.items() if at[0] in paths}
        host, _ = host_and_python()
        said = (str(warning.message) for warning in caught if warning.category is UserWarning)
        return [f"{host}: {message}" for message in said]

    def count(self, key: str, shards: tuple[int, ...], where: Where) -> tuple[int, int]:
        """Count the documents and rows that a filter over the metadata admits."""
        mask = self._part(key, shards).filter_mask(where)
        return mask.n_docs, mask.n_rows

    def search(
        self,
        key: str,
        shards: tuple[int, ...],
        queries: NDArray[np.float32],
        k: int,
        mask: SentMask,
        exact: bool,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the best rows of each query in some shards, as `Snapshot.search` does."""
        part = self._part(key, shards)
        scores, rows = part.search(queries, k, part.mask_of(mask), exact=exact)
        n_found = int(np.count_nonzero(rows >= 0, axis=1).max(initial=0))
        return scores[:, :n_found], rows[:, :n_found]

    def match(
        self,
        key: str,
        shards: tuple[int, ...],
        terms: Sequence[WeighedTerms],
        average: float,
        k: int,
        mask: SentMask,
        also: Sequence[NDArray[np.int64]] | None,
    ) -> list[Matches]:
        """Find the best documents of each query in some shards, as `LexicalSearch.best` does.

        The weights of ``terms`` and the average length of a document are those of all shards.
        """
        part = self._part(key, shards)
        return part.lexical_with(average).best(terms, k, part.mask_of(mask), also)

    def _part(self, key: str, shards: tuple[int, ...]) -> _Part:
        """Return some shards of a commit; raise `UnknownCommit` if they are not open (any more)."""
        with self._lock:
            if key not in self._commits:
                raise UnknownCommit(key)
            commit, root = self._commits[key]
            part = self._parts.get((key, shards)) or self._joined(commit, root, shards)
            _keep(self._commits, key, (commit, root), COMMITS_KEPT)
            of_index = [own for own, (c, _) in self._commits.items() if c.path == commit.path]
            for own in list(self._parts):  # the most recently used commits are the last ones
                if own[0] not in self._commits or own[0] in of_index[:-STATES_KEPT]:
                    del self._parts[own]
            return _keep(self._parts, (key, shards), part, PARTS_KEPT)

    def _joined(self, commit: ShardedCommit, root: Folder, shards: tuple[int, ...]) -> _Part:
        opened = list[Snapshot]()
        for number in shards:
            record = commit.record.shards[number]
            snapshot = self._snapshots.get((commit.path, record.folder), {}).get(record)
            if snapshot is None:
                raise UnknownCommit(commit.key)
            opened.append(snapshot)
        union = UnionManifest.of(commit.record.generation, [part.manifest for part in opened])
        union = replace(union, columns=commit.columns)
        return _Part(root, union, parts=opened, shards=commit.record)

    def _opened(
        self, commit: ShardedCommit, shards: tuple[int, ...]
    ) -> tuple[Folder, list[Snapshot]]:
        """Open the folder of an index and some shards; shards that are open already are reused."""
        host, versions = host_and_python()
        if versions != commit.versions:
            raise ClusterError(
                f"{host} has {versions}, and the machine of the command has {commit.versions}. "
                "Install the same versions on all machines."
            )
        try:
            root = manifests.open_folder(Path(commit.path))
            opened = [
                self._shard(root, commit.path, commit.record.shards[n], commit.manifests[n])
                for n in shards
            ]
        except (SbertSearchError, OSError) as error:
            raise ClusterError(
                f"{host} cannot open commit {commit.record.generation} of {commit.path}: {error} "
                "Every machine needs the folder under this path, such as on a shared file system. "
                "If the index was changed meanwhile, refresh the engine and search again."
            ) from error
        files = [ann for shard in opened for ann in shard.anns if ann is not None]
        if files:
            _require_faiss(host)
            for file in files:
                file.load()
        return root, opened

    def _shard(self, root: Folder, path: str, record: ShardRecord, manifest: Manifest) -> Snapshot:
        kept = self._snapshots.get((path, record.folder), {})
        if record in kept:
            return kept[record]
        return open_snapshot(root, record, next(reversed(kept.values()), None), manifest)


def _require_faiss(host: str) -> None:
    """Refuse a machine without FAISS: its scan would take longer and find other hits."""
    try:
        require_faiss()
    except ConfigError as error:
        raise ClusterError(f"{host} cannot search the FAISS files of the index: {error}") from error


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> V:
    """Store a value as the newest of a dict, drop all but the ``most`` newest, and return it."""
    kept.pop(key, None)
    kept[key] = value  # dicts keep their order
    for oldest in list(kept)[:-most]:
        del kept[oldest]
    return value


class _Part(Snapshot):
    _lexical: LexicalSearch | None = None

    def lexical_with(self, average: float) -> LexicalSearch:
        if self._lexical is None:
            assert self.manifest.lexical is not None
            parts = self._lexical_parts()
            self._lexical = LexicalSearch(parts, self.manifest.lexical, average)
        return self._lexical

    def mask_of(self, sent: SentMask) -> RowMask | None:
        """Return the mask of the rows to search; None: all live rows."""
        if sent is None or isinstance(sent, str):
            return None if sent is None else self.filter_mask(sent)
        parts = tuple(
            np.unpackbits(bits, count=segment.n_rows).view(bool)
            for segment, bits in zip(self.segments, sent, strict=True)
        )
        n_live = tuple(self.n_live(i) for i in range(len(parts)))
        n_docs = sum(
            int(part[segment.firsts].sum())
            for segment, part in zip(self.segments, parts, strict=True)
        )
        return RowMask(parts, n_live, n_docs, sum(int(part.sum()) for part in parts))
