"""Write the list of rejected rows, in a file next to the folder or file that is built."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

from sbert_search.corpus.formats.rows import Reject
from sbert_search.runtime.disk import files
from sbert_search.runtime.progress import warn

_NAME = re.compile(r".*\.rejects(\.old)?\.jsonl", re.DOTALL)
_FIELDS = {field.name for field in dataclasses.fields(Reject)}


class RejectLog:
    """JSON lines with the source, reason and value of every rejected row, in input order.

    The file ``<folder>.rejects.jsonl`` lists the rejected rows of the last finished run; it is
    absent if no row was rejected. During a run the new list grows under a temporary name. The
    previous list stays until the end of the run, since the run may read it as a source. A previous
    list that was edited by hand is kept as ``<folder>.rejects.old.jsonl``, unless the run read all
    of it and rejected no row.

    Args:
        folder: The folder or file that is built, such as an index.
        keep: If an interrupted run is resumed, the number of lines of its list to keep; further
            lines are dropped. 0: a new run.
    """

    def __init__(self, folder: Path, keep: int = 0) -> None:
        if folder.name in ("", ".."):  # such as ".", which has no name
            folder = folder.resolve()
        self.path = folder.with_name(f"{folder.name}.rejects.jsonl")
        self._old = folder.with_name(f"{folder.name}.rejects.old.jsonl")
        self._growing = folder.with_name(f"{folder.name}.rejects.jsonl.partial")
        if keep and self.path.exists() and not self._growing.exists():
            files.disk.replace(self.path, self._growing)  # the run was interrupted after `finish`
        self._log = files.LineLog(self._growing, keep)

    def append(self, rejects: Sequence[Reject]) -> None:
        """Write rejected rows durably; to be called before the commit that counts these rows."""
        self._log.append([json.dumps(dataclasses.asdict(reject)) for reject in rejects])

    def finish(self, *, was_read: bool) -> None:
        """Replace the previous list by the new one.

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
