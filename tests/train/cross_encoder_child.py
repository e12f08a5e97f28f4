"""Train a small cross-encoder on the ranks at hand; each epoch makes it worse on the dev data.

Usage: torchrun ... -m tests.train.cross_encoder_child OUT
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sbert_search.base.distributed import join_ranks
from sbert_search.base.progress import set_quiet
from sbert_search.config import from_mapping
from sbert_search.train import cross_encoder as train
from sbert_search.train import run as model_card
from sbert_search.train import run as published_run
from sbert_search.train.cross_encoder import CrossEncoderRecipe
from tests.models.tiny import tiny_bi_encoder
from tests.train.cross_encoder.test_train import QUICK, pairs, write


def _publish(mark: Path, publish: Callable[..., None], *arguments: object, **more: object) -> None:
    mark.touch()
    publish(*arguments, **more)


def main(out: Path) -> None:
    torch.set_num_threads(1)
    rows = pairs(np.random.default_rng(0), 64)
    learned = [row | {"label": "b" if row["alike"] else "a"} for row in rows]
    opposite = [row | {"label": "a" if row["alike"] else "b"} for row in rows]
    settings = {
        "model": str(out / "start"),
        "max_len": 16,
        "task": "classes",
        "loss": "cross_entropy",
        "data": {
            "train": str(out / "train.jsonl"),
            "dev": str(out / "dev.jsonl"),
            "labels": ["a", "b"],
        },
        "budget": {"epochs": 4},
    }
    mark = out / f"published-{os.environ['RANK']}"
    vars(published_run)["publish"] = partial(_publish, mark, model_card.publish)
    recipe = from_mapping(CrossEncoderRecipe, QUICK | settings)
    with join_ranks() as ranks:
        if ranks.first:
            tiny_bi_encoder(out / "tokenizer").save(out / "start")
            write(out / "train.jsonl", learned)
            write(out / "dev.jsonl", opposite)
        ranks.wait()
        result = train.train_cross_encoder(recipe, out / "run")
    if result.best is not None:
        (out / "run" / "best").write_text(result.best.name)


if __name__ == "__main__":
    set_quiet(True)
    main(Path(sys.argv[1]))
