"""What the ranks of a run must have in common: recipe, data, versions, and the checkpoint."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from sbert_search.base.distributed import Ranks
from sbert_search.errors import TrainingError
from sbert_search.training.loop.checkpoint import checkpoints
from sbert_search.training.loop.resume import differing

_MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"  # set by torchrun
_SHOWN = 5  # largest number of differences in a message


def require_agreement(ranks: Ranks, settings: Mapping[str, object]) -> None:
    """Refuse ranks that were started with other settings or data than rank 0.

    Args:
        ranks: The ranks; each of them makes this call.
        settings: JSON values that must be equal on all ranks.

    Raises:
        TrainingError: A rank differs; every rank raises the same message.
    """
    if ranks.world == 1:
        return
    hosts = ranks.gather_values(socket.gethostname())
    first, *others = (_mapping(value) for value in ranks.gather_values(settings))
    for rank, other in enumerate(others, start=1):
        lines = [
            f"{name} is {_short(left)} on rank 0 and {_short(right)} on rank {rank}"
            for name, left, right in differing(first, other)
        ]
        if lines:
            more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
            raise TrainingError(
                f"Rank {rank} (on {hosts[rank]}) does not train the same as rank 0 (on "
                f"{hosts[0]}): {'; '.join(lines[:_SHOWN])}{more}. Start all ranks with the same "
                "command, files and versions."
            )


def resumes(ranks: Ranks, out: Path) -> bool:
    """Whether a run resumes by itself: torchrun may have restarted it, and it has a checkpoint.

    torchrun restarts the ranks with the command that began the run. If its option --max-restarts is
    above 0, this process may therefore be a restart. The number of restarts so far does not show
    this: it differs between the machines, and is 0 on a machine that replaces another.

    Args:
        ranks: The ranks; each of them makes this call.
        out: Folder of the run.
    """
    if int(os.environ.get(_MAX_RESTARTS, "0")) == 0:
        return False
    return bool(ranks.from_first([bool(checkpoints(out))])[0])


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, dict)
    return value


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
