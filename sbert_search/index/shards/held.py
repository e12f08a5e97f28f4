"""The locks of a sharded index and of its shards, and commits that change several shards at once.

Each shard is an ordinary index in a sub-folder. A commit writes the new manifest of each changed
shard to the file `NEXT` of the shard. Then it replaces ``shards.json``, which makes all of these
manifests current. Finally it renames each file `NEXT` to ``MANIFEST.json``.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sbert_search.base import files
from sbert_search.base.folders import Folder
from sbert_search.base.locks import Lock
from sbert_search.errors import CommitUnknown, IndexStoreError
from sbert_search.index import store as stores
from sbert_search.index.part_writer import PartWriter
from sbert_search.index.shards import manifest as shard_manifests
from sbert_search.index.shards.manifest import ShardManifest, ShardRecord
from sbert_search.index.shards.opening import NEXT, StaleShard, open_shard, read_bytes
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage import transaction
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.storage.transaction import HeldFolder


class HeldShard(HeldFolder):
    """The opened folder of a shard, whose new manifests wait for the commit of all shards."""

    def __init__(self, folder: Folder, lock: Lock, kept: Folder | None = None) -> None:
        super().__init__(folder, lock, kept)
        self.waiting: Manifest | None = None  # in `NEXT`; the next commit makes it current
        self._superseded: list[str] = []
        self._defers = False

    def begin(self) -> None:
        """Begin a commit: new manifests and removals of files wait for `publish` or `undo`."""
        self.waiting, self._superseded, self._defers = None, [], True

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest of the next state durably to `NEXT`; ``MANIFEST.json`` stays."""
        files.replace_file(self.folder / NEXT, manifests.encode(manifest))
        self.waiting = manifest

    def removable(self, names: Iterable[str]) -> Iterable[str]:
        """Return the files that may be removed now: none between `begin` and `publish`."""
        if not self._defers:
            return names
        self._superseded += names
        return ()

    def publish(self) -> None:
        """Rename the waiting manifest to ``MANIFEST.json``, and remove files that it does not use.

        If the disk fails, the next writer of the index renames the manifest.
        """
        self._defers = False
        if self.waiting is not None:
            publish_next(self.folder)
            self._manifest = self._stamp(manifests.NAME)
            needed = {file.on_disk for file in self.waiting.files}
            transaction.remove(self, (n for n in self._superseded if n not in needed))
        self.waiting = None

    def undo(self, old: Manifest) -> None:
        """Remove what was written since `begin` to the state ``old``, as far as the disk allows."""
        self._defers = False
        needed = {file.on_disk for file in old.files}
        with contextlib.suppress(OSError, IndexStoreError):
            if self.folder.has(NEXT):
                files.disk.unlink(self.folder / NEXT)
            names = transaction.numbered_names(self.folder)
            new = [n for n in names if transaction.number_of(n) >= old.next_file]
            transaction.remove(self, (name for name in new if name not in needed))
        self.waiting = None


class HeldShards:
    """The opened folders of a sharded index and of its shards, by number, with their locks."""

    def __init__(
        self, folder: Folder, lock: Lock, parts: Sequence[HeldShard], manifest: ShardManifest
    ) -> None:
        self.folder, self._lock, self.parts = folder, lock, tuple(parts)
        self.manifest = manifest  # the content of ``shards.json``
        self._is_open = True  # False: the outcome of a commit is unknown

    @contextlib.contextmanager
    def together(self, writers: Sequence[PartWriter]) -> Iterator[None]:
        """Make all commits of the writers of the shards current at once, or none."""
        if not self._is_open:
            raise IndexStoreError(
                f"{self.folder}: an earlier commit of this writer failed at its last step. Open "
                "the index again."
            )
        before = [writer.snapshot for writer in writers]
        for shard in self.parts:
            shard.begin()
        try:
            yield
            if any(shard.waiting for shard in self.parts):
                self._is_open = False  # no other commit until the outcome of this one is known
                self.manifest = self._commit()
        except CommitUnknown:
            raise
        except OSError as error:
            self._undo(writers, before, error)
            raise IndexStoreError(
                f"{self.folder}: writing failed, {error}. The index is as it was before this "
                "commit; free or repair the disk and run the command again."
            ) from error
        except BaseException as error:
            self._undo(writers, before, error)
            raise
        try:
            for shard in self.parts:
                shard.publish()
        except OSError as error:
            raise CommitUnknown(
                f"{self.folder}: the commit is done, but the disk failed after it ({error}). Free "
                "or repair the disk, and open the index again."
            ) from error
        self._is_open = True

    def _commit(self) -> ShardManifest:
        """Make the waiting manifests of all shards current by one replacement of ``shards.json``.

        After `OSError` or `IndexStoreError` the old state holds, after `CommitUnknown` the old or
        the new.
        """
        old = self.manifest
        records = [
            record if shard.waiting is None else ShardRecord.of(number, shard.waiting)
            for number, (record, shard) in enumerate(zip(old.shards, self.parts, strict=True))
        ]
        new = ShardManifest(generation=old.generation + 1, shards=tuple(records))
        shard_manifests.write(self.folder, new, ready=self._require)
        return new

    def _require(self) -> None:
        """Refuse to commit if the folder, a shard, a lock or a shard's manifest was replaced."""
        for shard in self.parts:
            shard.require()
        if not (self._lock.is_in_place() and self.folder.is_at_its_path()):
            raise IndexStoreError(
                f"{self.folder} or its {manifests.LOCK} was moved or replaced while the index was "
                "written, so this commit was not made. Find out which program changed the folder, "
                "then run the command again."
            )

    def _undo(
        self, writers: Sequence[PartWriter], before: Sequence[Snapshot], error: BaseException
    ) -> None:
        """Reset all shards to the states in ``before``, unless the commit may have been made."""
        if self._is_open or isinstance(error, (OSError, IndexStoreError)):
            for writer, shard, old in zip(writers, self.parts, before, strict=True):
                writer.snapshot = old
                shard.undo(old.manifest)
            self._is_open = True


@contextlib.contextmanager
def holding_locks(path: Path, wait_s: float) -> Iterator[HeldShards]:
    """Hold the locks of a sharded index and of its shards, and finish an interrupted commit."""
    n_shards = 0
    with contextlib.ExitStack() as stack:
        try:
            root, lock = stores.take_lock(stack, path, wait_s)
            manifest = shard_manifests.read(root)
            n_shards = len(manifest.shards)
            shards = []
            for record in manifest.shards:
                finish_commit(root, record)
                shards.append(
                    stack.enter_context(
                        stores.holding_lock(root.path / record.folder, wait_s, HeldShard)
                    )
                )
        except (OSError, IndexStoreError) as error:
            if _has_too_many_files(error):
                raise IndexStoreError(_too_many_files(path, n_shards)) from error
            if isinstance(error, IndexStoreError):
                raise
            raise IndexStoreError(f"{path} cannot be written: {error}.") from error
        yield HeldShards(root, lock, shards, manifest)


def _has_too_many_files(error: OSError | IndexStoreError) -> bool:
    cause = error.__cause__ if isinstance(error, IndexStoreError) else error
    return isinstance(cause, OSError) and cause.errno == errno.EMFILE


def _too_many_files(path: Path, n_shards: int) -> str:
    each = shard_manifests.FILES_OF_SHARD
    shards = f"the {n_shards} shards" if n_shards else "its shards"
    return (
        f"{path} cannot be written: this process may not open more files. A writer has {each} "
        f"files open for each of {shards}; allow more, for example with "
        f"`ulimit -n {max(4096, 2 * each * n_shards)}`."
    )


def finish_commit(root: Folder, record: ShardRecord) -> None:
    """Finish or undo an interrupted commit in a shard.

    Afterwards ``MANIFEST.json`` of the shard has the hash in ``record``, and there is no `NEXT`.
    """
    folder = open_shard(root, record)
    waits = folder.has(NEXT)
    if read_bytes(folder, manifests.NAME)[:64] == record.sha256.encode():
        if waits:  # the commit of this manifest was not completed
            files.disk.unlink(folder / NEXT)
    elif read_bytes(folder, NEXT)[:64] == record.sha256.encode():
        publish_next(folder)
    else:
        raise StaleShard(folder, record)


def publish_next(folder: Folder) -> None:
    """Rename the file `NEXT` of a shard to ``MANIFEST.json``."""
    files.disk.replace(folder / NEXT, folder / manifests.NAME)
    files.disk.fsync_folder(folder)
