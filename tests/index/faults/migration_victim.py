"""A process that migrates an index until it is killed.

``python -m tests.index.faults.migration_victim`` reads one line per life on stdin (a JSON list of
the index and the model), forks a child that migrates it, and prints the child's id, then ``dead``
when it has ended. Forking spares the imports.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from sbert_search.index.building import migration
from sbert_search.index.index import Index


def migrate_once(path: Path, model: str) -> None:
    """Migrate with many commits; go back if the model is the one before."""
    usual = migration.PIECE_ROWS, migration.COMMIT_S
    migration.PIECE_ROWS, migration.COMMIT_S = 4, 0.0
    try:
        index = Index.open(path, wait_s=60)
        before = index.info().migrated_from
        index.roll_back() if before == model else index.migrate(model)
    finally:
        migration.PIECE_ROWS, migration.COMMIT_S = usual


def main() -> None:
    """Fork a child per line and wait for its end."""
    with tempfile.TemporaryDirectory() as folder:  # what is loaded once is loaded here
        index = Index.from_texts(["a", "b"], out=Path(folder, "i"), model="hashing:8")
        migrate_once(index.path, "hashing:12")
        migrate_once(index.path, "hashing:8")
    os.write(1, b"ready\n")
    for line in sys.stdin:
        path, model = json.loads(line)
        child = os.fork()
        if child == 0:
            migrate_once(Path(path), model)
            os._exit(0)
        os.write(1, f"{child}\n".encode())
        os.waitpid(child, 0)
        os.write(1, b"dead\n")


if __name__ == "__main__":
    main()
