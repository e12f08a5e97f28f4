"""Wait for changes of the files of a folder, by polling their sizes and modification times.

Polling works on every file system, even on network mounts, where the operating system does not
notify a program of changes that another machine makes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from sbert_search.text.formats.files import list_files

INTERVAL_S = 2.0
_LONGEST_UNREST = 15  # polls with changes after which `wait` returns although files still change

# Size in bytes, modification time and status change time in ns, and inode number of each file.
_State = dict[str, tuple[int, int, int, int]]


class FolderWatch:
    """Waits for changes of the files of a folder since this object was made.

    It watches the files whose content is a document (see `list_files`); it ignores tables.

    Args:
        folder: The folder; it may be absent for a time.
        interval_s: Seconds between two polls.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        interval_s: float = INTERVAL_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder, self._interval_s, self._sleep = folder, interval_s, sleep
        self._seen = _state_of(folder)
        self._to_confirm = False

    def wait(self) -> None:
        """Return when files have changed and the last two polls show the same state.

        If files keep changing, return after 15 polls with changes.

        If the first poll of the next call shows no change, that call returns nevertheless. The
        reason: a file may have changed again after it was read, but within the same tick of the
        file system's clock, so that its time is the same.
        """
        unrest = 0
        while True:
            self._sleep(self._interval_s)
            now = _state_of(self._folder)
            if now != self._seen:
                unrest += 1
            elif unrest:
                unrest = _LONGEST_UNREST
            elif self._to_confirm:
                self._to_confirm = False
                return
            self._seen = now
            if unrest >= _LONGEST_UNREST:
                self._to_confirm = True
                return

    def retry(self) -> None:
        """Make the next `wait` return even if nothing changes, so that failed work is repeated.

        It returns after its first poll, or later if that poll shows a change.
        """
        self._to_confirm = True


def _state_of(folder: Path) -> _State:
    state: _State = {}
    for name in list_files(folder, on_unlisted=lambda path, error: None).names:
        try:
            status = os.stat(folder / name)
        except OSError:
            continue
        state[name] = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    return state
