"""Making a sharded index, empty or out of existing indexes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sbert_search.base import files
from sbert_search.base.folders import Folder
from sbert_search.errors import IndexStoreError, NotAnIndex
from sbert_search.index import store as stores
from sbert_search.index.shards import manifest as shard_manifests
from sbert_search.index.shards.manifest import ShardManifest, ShardRecord, shards_of_hashes
from sbert_search.index.shards.opening import read_bytes, require_alike
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import ColumnType, Manifest
from sbert_search.index.store import IndexStore
from sbert_search.index.writer import require_fit


def create_shards(root: Folder, empty: Manifest, names: Sequence[str]) -> None:
    """Make empty shards and ``shards.json``, or finish a call that was interrupted."""
    made = [_empty_shard(root.path / name, empty) for name in names]
    files.disk.fsync_folder(root)
    shard_manifests.write(root, ShardManifest.of(0, made))


def _empty_shard(path: Path, empty: Manifest) -> Manifest:
    """Make an empty shard; replace an empty one that an interrupted creation has left."""
    with contextlib.suppress(NotAnIndex):
        left = IndexStore.open(path).snapshot
        if left.is_sharded or left.segments or left.manifest.generation:
            raise IndexStoreError(
                f"{path} holds an index, but its folder has no {manifests.SHARDS}. Restore that "
                "file, or remove the folder."
            )
        files.remove_tree(path)
    return IndexStore.create(path, empty).snapshot.manifest


def assemble(path: Path, parts: Sequence[Path]) -> IndexStore:
    """Move finished indexes into a new folder, as the shards of one index.

    Part ``n`` may hold only documents whose ids belong to shard ``n``, and no row number (the
    number of a passage in an index) may be in two parts. The parts are renamed, so they must be on
    the file system of ``path``. If the call is interrupted before the sharded index is complete, a
    second call with the same arguments finishes it.

    Args:
        path: The new folder. It is absent or empty, or has the remains of an interrupted call.
        parts: Folders of the indexes; the first becomes shard 0, the second shard 1, and so on.

    Raises:
        ConfigError: There is no part, or there are more than `manifest.MAX_SHARDS`.
        IndexStoreError: A part is unfinished, has another model or other settings than the first
            part, has a metadata column of another type, holds a document of another shard, or has a
            row number that another part has too; or ``path`` is not free or cannot be written.
        CorruptIndex: A file of a part is damaged.
    """
    shard_manifests.require_shard_count(len(parts))
    path = path.absolute()
    names = shard_manifests.folder_names(len(parts))
    places = [path / name for name in names]
    found = [_found(place, part.absolute()) for place, part in zip(places, parts, strict=True)]
    _check_parts(path, [IndexStore.open(part).snapshot for part in found])
    try:
        with stores.locked_new_folder(path, names) as (root, _):
            for part, place in zip(found, places, strict=True):
                if part != place:
                    files.disk.replace(part, place)
                    files.disk.fsync_folder(part.parent)
            files.disk.fsync_folder(root)
            records = [_record(place, name) for place, name in zip(places, names, strict=True)]
            shard_manifests.write(root, ShardManifest(shards=tuple(records)))
    except OSError as error:
        raise IndexStoreError(f"No index can be made at {path}: {error}.") from error
    return IndexStore.open(path)


def rows_from(number: int) -> int:
    """Return the first row number for part ``number``, which is ``number`` x 2**48.

    Parts that start at these numbers share no row numbers. Pass the result as ``next_row`` to
    `Manifest.new`, make the empty part with `IndexStore.create`, and add the documents to it.
    """
    return number << 48


def _found(place: Path, part: Path) -> Path:
    """Return where a part is: at its place, if an interrupted call has moved it, or outside."""
    if not place.is_dir():
        return part
    if part.exists() and not part.samefile(place):
        raise IndexStoreError(
            f"{place} exists already, so {part} cannot be moved there. Remove {place} if it is not "
            "needed, or name another new folder."
        )
    return place


def _check_parts(path: Path, parts: Sequence[Snapshot]) -> None:
    for part in parts:
        if part.is_sharded:
            raise IndexStoreError(f"{part.path} is a sharded index; a shard cannot have shards.")
    require_alike(path, parts)
    _check_columns(parts)
    for number, part in enumerate(parts):
        if (build := part.manifest.build) is not None and not build.finished:
            raise IndexStoreError(f"{part.path} is an unfinished build; finish it first.")
        for segment in part.segments:
            actual = shards_of_hashes(segment.ids[0], len(parts))
            if (wrong := actual != number).any():
                raise IndexStoreError(
                    f"{part.path} shall be shard {number}, but holds a document of shard "
                    f"{actual[wrong][0]}. Give shard_of(doc_id, {len(parts)}) of each document."
                )
    # The rows of deleted documents are compared too: to read a row, a sharded index looks for its
    # number in all segments, and segments also contain deleted rows.
    rows_of_parts = [segment.rows for part in parts for segment in part.segments]
    rows = np.sort(np.concatenate([np.empty(0, np.int64), *rows_of_parts]))
    if (twice := rows[1:] == rows[:-1]).any():
        raise IndexStoreError(
            f"Row {rows[1:][twice][0]} is in two of the parts of {path}. Number the rows of each "
            "part apart (`rows_from`)."
        )


def _check_columns(parts: Sequence[Snapshot]) -> None:
    columns: dict[str, ColumnType] = {}
    for number, part in enumerate(parts):
        try:
            columns = columns_of.merge(columns, part.manifest.columns)
        except IndexStoreError as error:
            raise IndexStoreError(
                f"{part.path} cannot be shard {number} of the index of the parts before it. {error}"
            ) from error
    for part in parts:
        require_fit(part, columns, "another part")


def _record(place: Path, name: str) -> ShardRecord:
    folder = Folder.open(place)
    data = read_bytes(folder, manifests.NAME)
    manifest: Manifest = manifests.decode(data)
    return ShardRecord(folder=name, generation=manifest.generation, sha256=data[:64].decode())
