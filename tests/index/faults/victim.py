"""A process that changes an index until it is killed, telling each commit on a pipe.

``python -m tests.index.faults.victim`` reads one line per life on stdin (path, seed, number of the
first operation), forks a child for it and prints the child's id; the child prints one byte per
acknowledged commit. Forking spares the imports.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
from pathlib import Path

from sbert_search.index.index import Index
from tests.index.faults.model import (
    Model,
    Operation,
    applied,
    apply,
    contents,
    new_index,
    random_operation,
)


def operation(seed: int, number: int, model: Model) -> Operation:
    """Draw the operation of a number: the same in the child and in the one who checks."""
    return random_operation(random.Random(f"{seed}/{number}"), model, number)


def live(path: Path, seed: int, first: int) -> None:
    """Do one operation after another and acknowledge each."""
    store = Index.open(path).store
    with store.writer() as writer:
        model = contents(store.snapshot)
        for number in itertools.count(first):
            step = operation(seed, number, model)
            apply(writer, step)
            model = applied(model, step)
            os.write(1, b".")


def main() -> None:
    """Fork a child per line and wait for its end."""
    with tempfile.TemporaryDirectory() as folder:  # what is loaded once is loaded here
        new_index(Path(folder) / "i", [operation(0, number, {}) for number in range(3)])
    os.write(1, b"ready\n")
    for line in sys.stdin:
        path, seed, first = line.rsplit(maxsplit=2)
        child = os.fork()
        if child == 0:
            live(Path(path), int(seed), int(first))
        os.write(1, f"{child}\n".encode())
        os.waitpid(child, 0)
        os.write(1, b"dead\n")


if __name__ == "__main__":
    main()
