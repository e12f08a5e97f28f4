"""Write the list of rejected rows (input rows that a run could not use).

The list is a file next to the folder or file that the run builds, such as an index.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

from sbert_search.base import files
from sbert_search.base.progress import warn
from sbert_search.corpus.formats.rows import Reject

_NAME = re.compile(r".*\.rejects(\.old)?\.jsonl", re.DOTALL)
_FIELDS = {field.name for field in dataclasses.fields(Reject)}


class RejectLog:
    """JSON lines with the source, reason and value of every rejected row, in input order.

    The file ``<folder>.rejects.jsonl`` lists the rejected rows of the last finished run; it is
    absent if no row was rejected. During a run the new list grows under a temporary name. The
    previous list stays until the end of the run, since the run may read it as a source. If the
    previous list has a line that this class cannot have written, a user edited it. It is then kept
    as ``<folder>.rejects.old.jsonl``, unless the run read it as a source and rejected no row.

    Args:
        folder: The folder or file that is built, such as an index.
        keep: If an interrupted run is resumed, the number of lines of its list to keep; further
            lines are dropped. 0: nothing is kept, as in a new run.
    """

    def __init__(self, folder: Path, keep: int = 0) -> None:
        if folder.name in ("", ".."):  # such as ".", which has no name
            folder = folder.resolve()
        self.path = folder.with_name(f"{folder.name}.rejects.jsonl")
        self._old = folder.with_name(f"{folder.name}.rejects.old.jsonl")
        self._growing = folder.with_name(f"{folder.name}.rejects.jsonl.partial")
        if keep and self.path.exists() and not self._growing.exists():
            # The run was interrupted after `finish` had renamed its list.
            files.disk.replace(self.path, self._growing)
        self._log = files.LineLog(self._growing, keep)

    def append(self, rejects: Sequence[Reject]) -> None:
        """Append rejected rows and sync them to disk.

        The caller commits the number of rejected rows after this call, so that a resumed run finds
        at least this number of lines.
        """
        self._log.append([json.dumps(dataclasses.asdict(reject)) for reject in rejects])

    def finish(self, *, was_read: bool) -> None:
        """Replace the previous list by the new one; remove it if no row was rejected.

        Args:
            was_read: Whether the previous list was a source of the run.
        """
        rejected = self._growing.exists()
        if self.path.exists() and (rejected or not was_read) and _is_changed(self.path):
            files.disk.replace(self.path, self._old)
            warn(f"{self.path} was changed by hand; it is kept as {self._old}.")
        if rejected:
            files.disk.replace(self._growing, self.path)
        elif self.path.exists():
            files.disk.unlink(self.path)


def is_reject_list(path: Path) -> bool:
    """Whether a file has the name of a list of rejected rows."""
    return _NAME.fullmatch(path.name) is not None


def _is_changed(path: Path) -> bool:
    """Whether a list contains a line that `RejectLog` cannot have written."""
    with path.open("rb") as lines:
        return not all(map(_is_record, lines))


def _is_record(line: bytes) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.keys() == _FIELDS
