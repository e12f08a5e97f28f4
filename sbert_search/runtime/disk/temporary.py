"""Temporary folders that last as long as an object."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from pathlib import Path

from sbert_search.runtime.disk.files import remove_tree


class TemporaryFolder:
    """An empty folder that is removed on request, or when this object or the process ends.

    A forked process has a copy of this object. If the forked process ends, the folder stays, since
    only the process that made the folder removes it. `tempfile.TemporaryDirectory` would remove it.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="sbert-search-"))
        self._finalizer = weakref.finalize(self, _remove, os.getpid(), self.path)

    def remove(self) -> None:
        """Remove the folder now; in a forked process, this does nothing."""
        self._finalizer()


def _remove(process: int, path: Path) -> None:
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            remove_tree(path)
