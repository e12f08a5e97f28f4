"""Train on two ranks of which only the second is asked to stop, at its fifth micro-batch.

Usage: torchrun ... -m tests.train.stopped_child OUT
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from sbert_search.base.distributed import join_ranks
from sbert_search.base.progress import set_quiet
from sbert_search.train.loop.loop import train
from sbert_search.train.loop.objective import Batch, Losses
from tests.train.small import TokenModel, settings, token_batches, token_objective


def main(out: Path) -> None:
    torch.set_num_threads(1)
    with join_ranks() as ranks:
        calls = 0

        def objective(model: nn.Module, batch: Batch) -> Losses:
            nonlocal calls
            calls += 1
            if ranks.rank == 1 and calls == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return token_objective(model, batch)

        config = settings("budget.steps=50", "checkpoint.every=1000")
        try:
            train(objective, token_batches(config), config, model=TokenModel(), out=out / "run")
        except KeyboardInterrupt:
            (out / f"stopped-{ranks.rank}").touch()


if __name__ == "__main__":
    set_quiet(True)
    main(Path(sys.argv[1]))
