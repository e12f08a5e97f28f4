"""Lock the folder of a training run against a second run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sbert_search.base.distributed import Ranks
from sbert_search.base.files import remove_tree
from sbert_search.base.locks import LockHeld, exclusive_lock
from sbert_search.errors import CheckpointError

LOCK = "LOCK"


@contextlib.contextmanager
def sole_run(out: Path, ranks: Ranks) -> Iterator[None]:
    """Hold the lock of a run's folder. The first rank creates the folder and locks it.

    A folder that cannot be locked, as on some network file systems, is used without a lock. A new
    folder is removed at the end if the run wrote nothing to it, such as after an error in its data.

    Raises:
        CheckpointError: Another run writes to the folder.
    """
    with contextlib.ExitStack() as stack:
        if ranks.first:
            with contextlib.suppress(OSError):
                existed = out.exists()
                out.mkdir(parents=True, exist_ok=True)
                try:
                    stack.enter_context(exclusive_lock(out / LOCK))
                except LockHeld as error:
                    raise CheckpointError(
                        f"Another run writes to {out}: {error.holder}. "
                        "Wait until it ends or stop it, or train into another folder."
                    ) from error
                if not existed:
                    stack.callback(_remove_if_unused, out)
        yield


def _remove_if_unused(out: Path) -> None:
    """Remove a folder that holds only the lock file."""
    with contextlib.suppress(OSError):
        if [file.name for file in out.iterdir()] == [LOCK]:
            remove_tree(out)
