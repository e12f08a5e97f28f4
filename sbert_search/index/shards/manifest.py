"""shards.json: the file that lists the shards, and the rule that assigns documents to them.

A shard is an ordinary index in a sub-folder, with a manifest of its own (``MANIFEST.json``). For
each shard, shards.json has the sha256 of this manifest. To commit a change, shards.json is replaced
by a new version. Its lines are as those of ``MANIFEST.json``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from sbert_search.base.folders import Folder
from sbert_search.errors import ConfigError
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import ids
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import Manifest

ROUTING = "xxh3_64 of doc_id modulo the number of shards"
"""The rule, in the words of shards.json. The id tables of all segments contain the same hashes."""


def shard_of(doc_id: str, n_shards: int) -> int:
    """Return the number of the shard, from 0, that holds the document with this id."""
    return int(shards_of([doc_id], n_shards)[0])


def shards_of(doc_ids: Sequence[str], n_shards: int) -> NDArray[np.int64]:
    """Return the number of the shard of each id, int64 (n,)."""
    return shards_of_hashes(ids.hash_ids(doc_ids), n_shards)


def shards_of_hashes(hashes: NDArray[np.uint64], n_shards: int) -> NDArray[np.int64]:
    """Return the number of the shard of each hash of an id, int64 (n,)."""
    return (hashes % np.uint64(n_shards)).astype(np.int64)


NAME = manifests.SHARDS
FORMAT = "sbert-search sharded index"
VERSION = 1
MAX_SHARDS = 1024  # more than `MAX_NEW_SHARDS` only if `store.assemble` made the index
# With 128 shards a writer has 7 x 128 = 896 files open; a process may usually open 1,024.
MAX_NEW_SHARDS = 128
FILES_OF_SHARD = 7  # files that a writer has open for each shard

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRecord:
    """The entry of one shard in shards.json: the shard's folder, and which manifest is current."""

    folder: str
    generation: int  # commits of the shard so far
    sha256: str  # in the first line of the shard's manifest

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha256):
            raise ConfigError(f"{self.sha256!r} is no sha256.")

    @classmethod
    def of(cls, number: int, manifest: Manifest) -> ShardRecord:
        """Make the record of shard ``number``, whose current manifest is ``manifest``."""
        sha256 = manifests.encode(manifest)[:64].decode()
        return cls(folder=folder_name(number), generation=manifest.generation, sha256=sha256)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardManifest:
    """One state of a sharded index."""

    format: str = FORMAT
    version: int = VERSION
    generation: int = 0  # commits of the sharded index so far
    routing: str = ROUTING
    shards: tuple[ShardRecord, ...]  # in the order of their numbers

    def __post_init__(self) -> None:
        require_shard_count(len(self.shards))
        if self.routing != ROUTING:
            raise ConfigError(f"its routing is {self.routing!r}, not {ROUTING!r}")
        expected = folder_names(len(self.shards))
        if [shard.folder for shard in self.shards] != expected:
            raise ConfigError(f"its folders are not {expected[0]} to {expected[-1]}")

    @classmethod
    def of(cls, generation: int, shards: Sequence[Manifest]) -> ShardManifest:
        """Make the state whose shards have these manifests, in the order of their numbers."""
        records = (ShardRecord.of(number, manifest) for number, manifest in enumerate(shards))
        return cls(generation=generation, shards=tuple(records))


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
            earlier=first.earlier,
        )


def folder_name(number: int) -> str:
    """Return the name of the folder of a shard, given its number from 0."""
    return f"shard-{number:04d}"


def folder_names(n_shards: int) -> list[str]:
    """Return the names of the folders of all shards."""
    return [folder_name(number) for number in range(n_shards)]


def require_shard_count(n_shards: int) -> None:
    """Refuse a number of shards that no index can have."""
    if not isinstance(n_shards, int) or not 1 <= n_shards <= MAX_SHARDS:
        raise ConfigError(
            f"The number of shards is {n_shards!r:.100}; it must be an integer from 1 to "
            f"{MAX_SHARDS}."
        )


def require_new_shard_count(n_shards: int) -> None:
    """Refuse a number of shards that a new index shall not have."""
    require_shard_count(n_shards)
    if n_shards > MAX_NEW_SHARDS:
        raise ConfigError(
            f"The number of shards is {n_shards}; a new index has at most {MAX_NEW_SHARDS}, since "
            f"a writer has {FILES_OF_SHARD} files open for each shard, and a process may usually "
            "open 1,024."
        )


def decode(data: bytes) -> ShardManifest:
    """Parse the bytes of shards.json, and check their hash and version."""
    return manifests.parse(data, NAME, ShardManifest, FORMAT, VERSION)


def read(folder: Folder) -> ShardManifest:
    """Read and check the manifest of a sharded index; `NotAnIndex` if the folder has none."""
    return decode(manifests.read_bytes(folder, NAME))


def write(
    folder: Folder, manifest: ShardManifest, *, ready: Callable[[], object] | None = None
) -> None:
    """Commit a new state by replacing shards.json, unless ``ready``, called before, raises."""
    manifests.write(folder, manifest, name=NAME, ready=ready)
