"""The right to write an index: its lock, and whether all that it stands for is still in place."""

from __future__ import annotations

from sbert_search.errors import IndexStoreError
from sbert_search.index.storage import manifest as manifests
from sbert_search.runtime.disk.folders import Folder
from sbert_search.runtime.disk.locks import Lock

Stamp = tuple[int, int, int]  # inode, time of change and size of a file


class Holding:
    """One opened index folder and the lock in it, for as long as one writer has them.

    Everything is written in that folder, whatever its path names by then. Before each commit
    `require` compares: a folder that was moved, or whose lock or manifest another has replaced, is
    no longer this writer's to change.

    Args:
        folder: The index.
        lock: Held on the file in it.
    """

    def __init__(self, folder: Folder, lock: Lock) -> None:
        self.folder, self._lock = folder, lock
        self._manifest = self._stamp(manifests.NAME)
        self._next: Stamp | None = None

    def require(self) -> None:
        """Refuse to commit where something has taken the place of what is held.

        Raises:
            IndexStoreError: With what it is; the index is as it was.
        """
        problem = self.problem
        if not problem and not self.folder.is_at_its_path():
            problem = f"{self.folder} was moved, removed or replaced"
        if problem:
            raise IndexStoreError(
                f"{problem} while it was written; nothing more was written to it. Every commit "
                "before this one is in the folder that was opened, wherever it is now. Find out "
                "what changed it, then run the command again."
            )
        self._next = self._stamp(manifests.TEMPORARY)

    def committed(self) -> None:
        """Take the manifest that `require` let pass for the one that is there."""
        self._manifest = self._next

    @property
    def problem(self) -> str:
        """Name the first thing that another process changed, the path aside; "" if none."""
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
