"""Uploading an index in batches, with retries, and a cursor file to resume an interrupted run.

The id of a passage in the engine depends only on the id of its document and on the number of the
passage in the document. If a batch is sent twice, because the answer was lost or the process was
killed, its passages replace those of the first time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sbert_search.base import files
from sbert_search.base.progress import note
from sbert_search.config import from_mapping
from sbert_search.errors import ConfigError, ExchangeError
from sbert_search.exchange.passages import Passages
from sbert_search.exchange.plan import ExportPlan, Target

T = TypeVar("T")

TRIES = 8
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
BATCH_ROWS = 256
BATCH_BYTES = 8 << 20
_BEING_MADE = -1  # `Cursor.done` until the collection is complete, with its indexes
_BYTES_A_NUMBER = 16  # estimated size of one component of a vector as JSON


class Receiver(Protocol):
    """A collection of another engine."""

    def exists(self) -> bool:
        """Whether there is a collection of this name."""

    def drop(self) -> None:
        """Delete the collection."""

    def create(self) -> None:
        """Make the collection, with typed fields for the columns."""

    def send(self, batch: Passages) -> None:
        """Write passages; passages with the same ids are replaced."""

    def finish(self) -> None:
        """Make all passages that were sent searchable."""

    def count(self) -> int:
        """Count the passages in the collection."""

    def is_transient(self, error: Exception) -> bool:
        """Whether the same call may succeed later: the server is busy, or cannot be reached."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """The progress of an upload."""

    to: str
    url: str  # of the server or file, without user and password
    name: str
    index: str  # absolute path
    # sha256 of the manifest of the index. Its generation would not suffice: another index, built
    # later in the same folder, can have the same generation.
    state: str
    fields: dict[str, str]  # as in `ExportPlan`
    done: int = 0  # passages sent, in the order of `read_passages`; or `_BEING_MADE`

    @classmethod
    def read(cls, path: Path) -> Cursor | None:
        """Read a file that `write` wrote; None: the file is absent or of another form."""
        with contextlib.suppress(OSError, ValueError, ConfigError):
            return from_mapping(cls, json.loads(path.read_bytes()))
        return None

    def write(self, path: Path) -> None:
        """Replace the file."""
        files.replace_file(path, json.dumps(asdict(self)).encode())


def upload(
    plan: ExportPlan, receiver: Receiver, start: Cursor, path: Path, *, replace_old: bool
) -> int:
    """Send all passages, and check that the engine counts as many as the index has.

    ``start`` is the cursor of a new upload; the cursor file at ``path`` is removed at the end.
    Returns the number of passages that an interrupted upload had sent before.
    """
    again = "Run the same command again."
    before = None if replace_old else Cursor.read(path)
    cursor = start
    if before is not None and replace(before, done=0) == start:
        cursor = before
    exists = _tried(receiver, receiver.exists, again)
    is_ours = cursor is before
    if exists and (not is_ours or cursor.done < 0):
        if not (replace_old or is_ours):
            raise ConfigError(
                f"{start.url} holds {start.name!r} already. Name another one with --name, or pass "
                "--replace to delete it first."
            )
        _tried(receiver, receiver.drop, again)
        exists = False
    command = "command again without --replace" if replace_old else "same command again"
    again = f"Run the {command}: it continues the upload."
    if not exists:
        replace(start, done=_BEING_MADE).write(path)
        _tried(receiver, partial(_create, receiver, itertools.count()), again)
        cursor = start
        cursor.write(path)
    elif cursor.done:
        note(f"Resuming after {cursor.done:,} passages.")
    resumed = cursor.done
    for block in plan.passages(cursor.done):
        for batch in batches(block):
            _tried(receiver, partial(receiver.send, batch), again)
            cursor = replace(cursor, done=cursor.done + len(batch.rows))
            cursor.write(path)
    _tried(receiver, receiver.finish, again)
    counted = _tried(receiver, receiver.count, again)
    if counted != plan.snapshot.n_rows:
        raise ExchangeError(
            f"{start.url} counts {counted:,} passages in {start.name!r}, and the index has "
            f"{plan.snapshot.n_rows:,}. Another program may write to it; pass --replace to start "
            "again."
        )
    files.remove_tree(path)
    return resumed


def _create(receiver: Receiver, tries: Iterator[int]) -> None:
    """Make the collection; what a failed try has left behind is deleted first."""
    if next(tries) and receiver.exists():
        receiver.drop()
    receiver.create()


def batches(block: Passages) -> Iterator[Passages]:
    """Split a block into batches of at most `BATCH_ROWS` passages and about `BATCH_BYTES`."""
    sizes = np.full(len(block.rows), block.vectors.shape[1] * _BYTES_A_NUMBER, np.int64)
    for column in block.table.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
        else:
            sizes += column.nbytes // max(len(column), 1)
    start, total = 0, 0
    for at, size in enumerate(sizes.tolist()):
        if at > start and (total + size > BATCH_BYTES or at - start == BATCH_ROWS):
            yield _part(block, start, at)
            start, total = at, 0
        total += size
    yield _part(block, start, len(block.rows))


def _part(block: Passages, start: int, stop: int) -> Passages:
    table = block.table.slice(start, stop - start)
    return Passages(block.rows[start:stop], table, block.vectors[start:stop])


def _tried(receiver: Receiver, call: Callable[[], T], again: str) -> T:
    """Try a call up to `TRIES` times, with growing pauses, while its errors are transient.

    ``again`` ends the message after the last try, and tells the user how to go on.
    """
    wait_s = FIRST_WAIT_S
    for left in reversed(range(TRIES)):
        try:
            return call()
        except (ConfigError, ExchangeError):
            raise
        except Exception as error:
            if not receiver.is_transient(error):
                raise ExchangeError(f"The engine refused a request: {_line(error)}.") from error
            if not left:
                raise ExchangeError(
                    f"The engine did not answer as it should {TRIES} times: {_line(error)}. {again}"
                ) from error
            note(f"The engine is busy or away ({_line(error)}); trying again in {wait_s:g} s.")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
    raise AssertionError


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300].rstrip(".")


def collection_name(index: Path, to: Target) -> str:
    """Return the default name of a collection, made from the name of the index folder.

    It is in lower case, begins with a letter, and has only ASCII letters, digits and underscores.
    """
    word = "".join(c if c.isalnum() and c.isascii() else "_" for c in index.stem.lower()).strip("_")
    return word if word[:1].isalpha() else f"index_{word}".rstrip("_")
