"""Train on two ranks of which one first has another recipe, and then stops answering.

Usage: RANK=... WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python -m tests.train.lost_child OUT
Each rank writes to OUT the error that its recipe got, and the first one how it lost the other.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from sbert_search.base.distributed import join_ranks
from sbert_search.base.progress import set_quiet
from sbert_search.errors import TrainingError
from sbert_search.train.loop.loop import train
from tests.train.small import TokenModel, settings, token_batches, token_objective


def main(out: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    (out / f"ready-{rank}").touch()
    while len(list(out.glob("ready-*"))) < 2:  # the time-out is shorter than an import may take
        time.sleep(0.02)
    with join_ranks():
        own = settings(f"optim.lr={0.1 if rank else 0.2}")
        try:
            train(token_objective, token_batches(own), own, model=TokenModel(), out=out / "run")
        except TrainingError as error:
            (out / f"differs-{rank}").write_text(str(error))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        equal = settings()
        train(token_objective, token_batches(equal), equal, model=TokenModel(), out=out / "run")


if __name__ == "__main__":
    set_quiet(True)
    try:
        main(Path(sys.argv[1]))
    except TrainingError as error:
        (Path(sys.argv[1]) / "lost").write_text(str(error))
        os._exit(1)
