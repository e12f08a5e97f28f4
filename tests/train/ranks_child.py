"""Train small models on the ranks at hand, for comparing one rank with two.

Usage: [torchrun ...] -m tests.train.ranks_child OUT
"""

import os
import sys
from pathlib import Path

import torch

from sbert_search.base.distributed import join_ranks
from sbert_search.base.progress import set_quiet
from sbert_search.base.tensors import write_tensors
from sbert_search.train.loop.loop import train
from tests.train.small import TASKS, TokenModel, settings

SHARED = ("optim.lr=2e-3", "optim.clip=0", "schedule.warmup=0", "batching.micro_size=12")


def main(out: Path) -> None:
    torch.set_num_threads(1)
    rank = os.environ.get("RANK", "0")
    with join_ranks():
        for kind, (objective, data) in TASKS.items():
            for steps in (1, 50):
                config, model = settings(*SHARED, f"budget.steps={steps}"), TokenModel(0.0)
                with torch.no_grad():
                    model.norm.weight.add_(int(rank))  # the first rank's weights are to win
                folder = out / f"{kind}-{steps}"
                train(objective, data(config), config, model=model, out=folder)
                tensors = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
                write_tensors(out / f"{kind}-{steps}-gradient-{rank}.safetensors", tensors)
                weights = dict(model.named_parameters())
                write_tensors(out / f"{kind}-{steps}-weights-{rank}.safetensors", weights)


if __name__ == "__main__":
    set_quiet(True)
    main(Path(sys.argv[1]))
