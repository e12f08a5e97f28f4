"""Locks between processes, and checks that a file system supports locks and renames."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator

from sbert_search.base import files
from sbert_search.base.folders import Folder, Place, identity_of, parent_of

PROBES = (".probe-1", ".probe-2")  # names of the test files of `check_renames`
POLL_S = 0.02  # seconds between two tries to get a lock

# The locks of this process. A forked child inherits their descriptors and closes them, since an
# open copy would keep a lock after the parent has released it.
_held: set[Lock] = set()


class LockHeld(Exception):  # noqa: N818 (each subpackage turns it into an error of its own)
    """Another process, or another part of this process, holds the lock."""

    def __init__(self, place: Place, holder: str) -> None:
        self.holder = holder  # such as "process 4711 since 2026-11-27T12:00:00+0000"
        super().__init__(f"{place} is held by {holder}.")


class Lock:
    """An flock on a file, held by this process but not by its forks."""

    def __init__(self, place: Place, fd: int) -> None:
        self.place, self._fd = place, fd
        _held.add(self)

    def is_in_place(self) -> bool:
        """Whether this process holds the lock and ``place`` still names the locked file."""
        return self._fd >= 0 and _leads_to(self.place, self._fd)

    def write_holder(self) -> None:
        """Write process id and time into the lock file, for messages of other processes."""
        note = json.dumps({"pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
        with contextlib.suppress(OSError):  # a full disk: the lock is valid without the note
            if os.fstat(self._fd).st_nlink == 1:  # with several links it may be a user's file
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, note.encode(), 0)

    def release(self) -> None:
        """Clear the lock file and release the lock."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            if os.fstat(self._fd).st_nlink == 1:
                os.ftruncate(self._fd, 0)
        self.forget()

    def forget(self) -> None:
        """Close the descriptor; if a forked child does this, its parent keeps the lock."""
        _held.discard(self)
        os.close(self._fd)
        self._fd = -1


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


@contextlib.contextmanager
def exclusive_lock(place: Place, *, wait_s: float = 0.0) -> Iterator[Lock]:
    """Hold an flock on a file, created if absent; the kernel releases it even if this process dies.

    `LockHeld` is raised if it is not free within ``wait_s``; an OSError if the file cannot be
    locked, as in a read-only folder, or if its file system ignores locks.
    """
    if sys.platform == "win32":
        raise OSError("Windows is not supported for writing; use Linux, macOS or WSL")
    lock = _acquire(place, time.monotonic() + wait_s)
    try:
        lock.write_holder()
        yield lock
    finally:
        lock.release()


def _acquire(place: Place, deadline: float) -> Lock:
    """Lock a file; reopen it by its name on each try, since another process may replace it."""
    while True:
        fd = files.open_lock(place)
        try:
            if _try_lock(fd):
                if _leads_to(place, fd):
                    _require_exclusion(place)
                    return Lock(place, fd)
            elif time.monotonic() >= deadline:
                raise LockHeld(place, _read_holder(fd))
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        time.sleep(POLL_S)


def _leads_to(place: Place, fd: int) -> bool:
    with contextlib.suppress(FileNotFoundError), parent_of(place) as (folder_fd, name):
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        return identity_of(status) == identity_of(os.fstat(fd))
    return False


def _try_lock(fd: int) -> bool:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _require_exclusion(place: Place) -> None:
    """Try to lock a locked file again, which must fail; some network file systems ignore locks."""
    fd = files.open_lock(place)
    try:
        if _try_lock(fd):
            raise OSError(f"{place.parent}: this file system ignores locks")
    finally:
        os.close(fd)


def _read_holder(fd: int) -> str:
    """Read who holds a lock; wait a moment if process id and time are not written yet."""
    for _ in range(20):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            note = json.loads(os.pread(fd, 4096, 0))
            return f"process {note['pid']} since {note['since']}"
        time.sleep(0.01)
    return "another process"


def check_renames(folder: Folder) -> None:
    """Test that renaming over a file works, unlike on some network mounts; commits rely on it."""
    first, second = (folder / name for name in PROBES)
    _remove_probes(folder)  # of a killed process
    try:
        files.write_new(first, b"1")
        files.write_new(second, b"2")
        files.disk.replace(first, second)
        if bytes(files.map_file(second)) != b"1" or folder.has(first.name):
            raise OSError(f"{folder}: renaming over a file does not work on this file system")
    finally:
        _remove_probes(folder)


def _remove_probes(folder: Folder) -> None:
    for name in PROBES:
        with contextlib.suppress(FileNotFoundError):
            files.disk.unlink(folder / name)
