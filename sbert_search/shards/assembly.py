"""Making a sharded index out of existing indexes, without copying their files.

A sharded index is a folder of ordinary indexes, its shards. Shards are numbered from 0. The id of a
document decides which shard holds it (`routing.shard_of`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sbert_search.base import files
from sbert_search.base.folders import Folder
from sbert_search.errors import IndexStoreError
from sbert_search.index import store as stores
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import columns as columns_of
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import ColumnType, Manifest
from sbert_search.index.store import IndexStore
from sbert_search.shards import manifest as shard_manifests
from sbert_search.shards.manifest import ShardManifest, ShardRecord
from sbert_search.shards.routing import shards_of_hashes
from sbert_search.shards.states import read_bytes, require_alike
from sbert_search.shards.store import ShardedStore, check_free


def assemble(path: Path, parts: Sequence[Path]) -> ShardedStore:
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
    shard_manifests.require_number(len(parts))
    path = path.absolute()
    names = shard_manifests.folder_names(len(parts))
    places = [path / name for name in names]
    found = [_found(place, part.absolute()) for place, part in zip(places, parts, strict=True)]
    _check_parts(path, [IndexStore.open(part).snapshot for part in found])
    try:
        with contextlib.suppress(FileExistsError):
            files.disk.make_folder(path)
            files.disk.fsync_folder(path.parent)
        with contextlib.ExitStack() as stack:
            root, _ = stores.take_lock(stack, path, 0.0)
            check_free(root, names)
            for part, place in zip(found, places, strict=True):
                if part != place:
                    files.disk.replace(part, place)
                    files.disk.fsync_folder(part.parent)
            files.disk.fsync_folder(root)
            records = [_record(place, name) for place, name in zip(places, names, strict=True)]
            shard_manifests.write(root, ShardManifest(shards=tuple(records)))
    except OSError as error:
        raise IndexStoreError(f"No index can be made at {path}: {error}.") from error
    return ShardedStore.open(path)


def rows_from(number: int) -> int:
    """Return the first row number for part ``number``, which is ``number`` x 2**48.

    Parts that start at these numbers share no row numbers. Pass the result as ``first_row`` to
    `IndexStore.create`, which makes the empty part, and then add the documents to the part.
    """
    return number << 48


def _found(place: Path, part: Path) -> Path:
    """Return where a part is: at its place, if an interrupted call has moved it, or still outside.

    Raises:
        IndexStoreError: Another folder is at its place.
    """
    if not place.is_dir():
        return part
    if part.exists() and not part.samefile(place):
        raise IndexStoreError(
            f"{place} exists already, so {part} cannot be moved there. Remove {place} if it is not "
            "needed, or name another new folder."
        )
    return place


def _check_parts(path: Path, parts: Sequence[Snapshot]) -> None:
    """Refuse parts that cannot be the shards of one index."""
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
    held = [segment.rows for part in parts for segment in part.segments]
    rows = np.sort(np.concatenate([np.empty(0, np.int64), *held]))
    if (twice := rows[1:] == rows[:-1]).any():
        raise IndexStoreError(
            f"Row {rows[1:][twice][0]} is in two of the parts of {path}. Number the rows of each "
            "part apart (`assembly.rows_from`)."
        )


def _check_columns(parts: Sequence[Snapshot]) -> None:
    """Refuse parts in which one metadata column has types that cannot be merged."""
    columns: dict[str, ColumnType] = {}
    for number, part in enumerate(parts):
        try:
            columns = columns_of.merge(columns, part.manifest.columns)
        except IndexStoreError as error:
            raise IndexStoreError(
                f"{part.path} cannot be shard {number} of the index of the parts before it. {error}"
            ) from error
    for part in parts:
        for name, kind in part.manifest.columns.items():
            if kind in ("int64", "list[string]") and columns[name] != kind:
                if part.widens(name):
                    continue
                held, fails = ("integers", "round") if kind == "int64" else ("texts", "refuse")
                raise IndexStoreError(
                    f"{part.path}: the metadata column {name!r} holds {held} that {columns[name]}, "
                    f"its type in another part, would {fails}; rename it in the source."
                )


def _record(place: Path, name: str) -> ShardRecord:
    folder = Folder.open(place)
    data = read_bytes(folder, manifests.NAME)
    manifest: Manifest = manifests.decode(data)
    return ShardRecord(folder=name, generation=manifest.generation, sha256=data[:64].decode())
