"""Train with dropout and accumulation, going on from the newest checkpoint if there is one.

Usage: python -m tests.training.killed_child OUT token|pair
It writes a byte for each micro-batch that is made.
"""

import os
import sys
from pathlib import Path

import torch

from sbert_search.training.batching import Rows
from sbert_search.training.checkpoint import checkpoints
from sbert_search.training.loop import train
from sbert_search.training.objective import Batch
from tests.training.real import (
    MaskedModel,
    MeanPairs,
    masked_batches,
    masked_objective,
    pairs_of_texts,
)
from tests.training.small import settings

STEPS = 40
SETTINGS = (f"budget.steps={STEPS}", "checkpoint.every=3", "batching.micro_size=8", "optim.lr=1e-3")


def main(out: Path, kind: str) -> None:
    torch.set_num_threads(1)
    config, model = settings(*SETTINGS), MaskedModel(dropout=0.1)
    objective, data = (
        (masked_objective, masked_batches) if kind == "token" else (MeanPairs(), pairs_of_texts)
    )
    batches, resume = data(config), bool(checkpoints(out))
    collate = batches.collate

    def told(rows: Rows, epoch: int) -> Batch:
        os.write(sys.stdout.fileno(), b".")
        return collate(rows, epoch)

    batches.collate = told
    train(objective, batches, config, model=model, out=out, save_model=model.save, resume=resume)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
