"""A process that syncs an index with a folder until it is killed.

``python -m tests.index.faults.sync_victim`` reads one line per life on stdin (a JSON list of index
and folder), forks a child that syncs them once, and prints the child's id, then ``dead`` when it
has ended. Forking spares the imports.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.building import sync
from sbert_search.index.index import Index

COMMIT_ROWS = 4  # so that a sync of a few files has several commits


def sync_once(index: Path, folder: Path) -> sync.SyncReport:
    """Sync in small commits."""
    usual, sync.COMMIT_ROWS = sync.COMMIT_ROWS, COMMIT_ROWS
    try:
        return Index.open(index).sync(folder, model=HashingEmbedder(dim=16))
    finally:
        sync.COMMIT_ROWS = usual


def main() -> None:
    """Fork a child per line and wait for its end."""
    with tempfile.TemporaryDirectory() as folder:  # what is loaded once is loaded here
        Path(folder, "notes").mkdir()
        Path(folder, "notes", "a.md").write_text("a")
        Index.create(Path(folder, "i"), model=HashingEmbedder(dim=16))
        sync_once(Path(folder, "i"), Path(folder, "notes"))
    os.write(1, b"ready\n")
    for line in sys.stdin:
        index, notes = map(Path, json.loads(line))
        child = os.fork()
        if child == 0:
            sync_once(index, notes)
            os._exit(0)
        os.write(1, f"{child}\n".encode())
        os.waitpid(child, 0)
        os.write(1, b"dead\n")


if __name__ == "__main__":
    main()
