"""Opening a sharded index: the states of its shards, joined to one state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from sbert_search.base import files
from sbert_search.base.folders import Folder
from sbert_search.errors import CorruptIndex, IndexStoreError, NotAnIndex
from sbert_search.index.shards import manifest as shard_manifests
from sbert_search.index.shards.manifest import ShardManifest, ShardRecord, UnionManifest
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import Manifest

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
    """Put the folder of the shard, if any, before the name of the damaged file in an error."""
    if not folder or isinstance(error, StaleShard):  # which has the full path already
        return error
    return CorruptIndex(f"{folder}/{error.file}", error.expected, error.got, error.remedy)


@contextlib.contextmanager
def naming_shard(folder: str) -> Iterator[None]:
    """Put the folder of the shard before the file name in each `CorruptIndex` of the context.

    ``folder`` "": the index has no shards, and errors stay as they are.
    """
    try:
        yield
    except CorruptIndex as error:
        if (named := in_shard(folder, error)) is error:
            raise
        raise named from error


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
    with contextlib.suppress(NotAnIndex):
        return manifests.read_bytes(folder, name)
    return b""


def open_shards(root: Folder, manifest: ShardManifest, reuse: Snapshot | None) -> Snapshot:
    """Open the states of all shards, with the open files of ``reuse``; refuse unlike shards."""
    known = (
        dict(zip(reuse.shards.shards, reuse.parts, strict=True)) if reuse and reuse.shards else {}
    )
    earlier = {record.folder: state for record, state in known.items()}
    parts = [
        known.get(record) or open_snapshot(root, record, earlier.get(record.folder))
        for record in manifest.shards
    ]
    require_alike(root.path, parts)
    return joined(root, manifest, parts)


def joined(root: Folder, manifest: ShardManifest | None, parts: Sequence[Snapshot]) -> Snapshot:
    """Join the states of all shards, by number; ``manifest`` None: the only part is the index."""
    if manifest is None:
        return parts[0]
    union = UnionManifest.of(manifest.generation, [part.manifest for part in parts])
    return Snapshot(root, union, parts=parts, shards=manifest)


def open_snapshot(
    root: Folder, record: ShardRecord, reuse: Snapshot | None, manifest: Manifest | None = None
) -> Snapshot:
    """Open the state of one shard, with the open files of ``reuse`` if its folder is the same."""
    folder = open_shard(root, record)
    same = reuse is not None and reuse.folder.identity == folder.identity
    with naming_shard(record.folder):
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
