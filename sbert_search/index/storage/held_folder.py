"""The lock of an index, and the check that its folder and files are still those that were opened.

A lock alone is not enough, since another program may move or replace the folder while the lock is
held.
"""

from __future__ import annotations

from collections.abc import Iterable

from sbert_search.base.folders import Folder
from sbert_search.base.locks import Lock
from sbert_search.errors import IndexStoreError
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import Manifest

Stamp = tuple[int, int, int]  # inode, modification time and size of a file


class HeldFolder:
    """The opened folder of an index and the lock that its writer holds.

    All files are written to the opened folder, even if its path has come to name another folder.
    Before each commit, `require` refuses a folder that was moved, or whose lock or manifest was
    replaced.

    Args:
        folder: The index.
        lock: The lock on its lock file.
    """

    def __init__(self, folder: Folder, lock: Lock) -> None:
        self.folder, self._lock = folder, lock
        self._manifest = self._stamp(manifests.NAME)
        self._next: Stamp | None = None

    def require(self) -> None:
        """Refuse to commit if the folder, a sub-folder, the lock or the manifest was replaced.

        Raises:
            IndexStoreError: One of them was moved, removed or replaced; nothing was committed.
        """
        problem = self.problem
        if not problem and not self.folder.is_at_its_path():
            problem = f"{self.folder} was moved, removed or replaced"
        if problem:
            raise IndexStoreError(
                f"{problem} while the index was written, so this commit was not made. Earlier "
                "commits are in the folder that was opened, wherever it is now. Find out which "
                "program changed the folder, then run the command again."
            )
        self._next = self._stamp(manifests.TEMPORARY)

    def write_manifest(self, manifest: Manifest) -> None:
        """Commit by replacing the manifest; later checks expect the new manifest in its place.

        Raises:
            OSError: The disk failed; the old state holds.
            IndexStoreError: The folder is no longer the one that was opened; the old state holds.
            CommitUnknown: The disk failed at the last step; the old or the new state holds.
        """
        manifests.write(self.folder, manifest, ready=self.require)
        self._manifest = self._next

    def removable(self, names: Iterable[str]) -> Iterable[str]:
        """Return the names of the unreferenced files that may be removed now.

        Here these are all ``names``; a shard removes none before all shards are committed.
        """
        return names

    @property
    def problem(self) -> str:
        """What was removed, replaced or moved inside the folder; "" if nothing."""
        if not self._lock.is_in_place():
            return f"{self.folder / manifests.LOCK} was removed or replaced"
        if moved := self.folder.moved_folders():
            return f"{self.folder / moved[0]} was moved, removed or replaced"
        if self._stamp(manifests.NAME) != self._manifest:
            return f"{self.folder / manifests.NAME} was removed or replaced"
        return ""

    def _stamp(self, name: str) -> Stamp | None:
        try:
            status = self.folder.stat(name)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
