"""Take one in-batch step and print the most anonymous memory that was held meanwhile.

Usage: python -m tests.train.memory_child OUT SIZE MICRO_SIZE
"""

import sys
import threading
import time
from pathlib import Path

import torch

from sbert_search.base.device import memory_bytes
from sbert_search.base.progress import set_quiet
from sbert_search.train.loop.loop import train
from tests.train.real import MaskedModel, MeanPairs, pairs_of_texts
from tests.train.small import settings


def main(out: Path, size: int, micro_size: int) -> int:
    config = settings(
        "budget.steps=1",
        "precision=fp32",
        f"batching.size={size}",
        f"batching.micro_size={micro_size}",
    )
    model = MaskedModel(hidden=128, layers=2)
    peak, over = [0], threading.Event()

    def sample() -> None:
        while not over.is_set():
            peak[0] = max(peak[0], memory_bytes(torch.device("cpu")))
            time.sleep(0.005)

    sampler = threading.Thread(target=sample)
    sampler.start()
    batches = pairs_of_texts(config, size, shortest=16, longest=16)
    try:
        train(MeanPairs(), batches, config, model=model, out=out)
    finally:
        over.set()
        sampler.join()
    return peak[0]


if __name__ == "__main__":
    set_quiet(True)
    peak = main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(f"{peak}\n")
