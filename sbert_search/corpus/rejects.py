"""The list of rejected rows that work leaves beside the folder it makes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from sbert_search.corpus.rows import Reject
from sbert_search.runtime.files import LineLog


class RejectLog:
    """JSON lines with the source, reason and value of every rejected row, in input order.

    The file is ``<folder>.rejects.jsonl``, beside the folder. It lists what the last work on it
    rejected, and is absent when that was nothing.

    Args:
        folder: What is made of the other rows, such as an index.
        keep: Lines of a stopped run that still count when it goes on; the rest is dropped.
    """

    def __init__(self, folder: Path, keep: int = 0) -> None:
        self.path = folder.with_name(f"{folder.name}.rejects.jsonl")
        self._log = LineLog(self.path, keep)

    def append(self, rejects: Sequence[Reject]) -> None:
        """Make rejected rows durable, before the commit that counts them."""
        self._log.append([json.dumps(dataclasses.asdict(reject)) for reject in rejects])
