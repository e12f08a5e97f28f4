"""Let one run at a time write to a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sbert_search.errors import CheckpointError
from sbert_search.runtime.disk.locks import LockHeld, exclusive_lock
from sbert_search.runtime.distributed import Ranks

LOCK = "LOCK"


@contextlib.contextmanager
def sole_run(out: Path, ranks: Ranks) -> Iterator[None]:
    """Lock the folder of a run, which is made if absent, on the first rank.

    A folder that cannot be locked, as on some network file systems, is used without a lock.

    Raises:
        CheckpointError: Another run writes to the folder.
    """
    with contextlib.ExitStack() as stack:
        if ranks.first:
            with contextlib.suppress(OSError):
                out.mkdir(parents=True, exist_ok=True)
                try:
                    stack.enter_context(exclusive_lock(out / LOCK))
                except LockHeld as error:
                    raise CheckpointError(
                        f"Another run writes to {out}: process {error.pid}, since {error.since}. "
                        "Wait until it ends or stop it, or train into another folder."
                    ) from error
        yield
