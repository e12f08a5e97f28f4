"""Train with dropout and accumulation, going on from the newest checkpoint if there is one.

Usage: python -m tests.train.killed_child OUT token|pair|pretrain
It writes a byte for each micro-batch that is made.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from sbert_search.train import pretrain as pretraining
from sbert_search.train.loop.checkpoint import checkpoints
from sbert_search.train.loop.loop import train
from sbert_search.train.loop.objective import Batch, Batches, Rows
from sbert_search.train.pretraining_data import make_batches
from sbert_search.train.recipe import load_recipe
from tests.train.real import (
    MaskedModel,
    MeanPairs,
    masked_batches,
    masked_objective,
    pairs_of_texts,
)
from tests.train.small import settings
from tests.train.words import write_texts, write_vocabulary

STEPS = 40
SETTINGS = (f"budget.steps={STEPS}", "checkpoint.every=3", "batching.micro_size=8", "optim.lr=1e-3")
SHAPE = "layers = 2, hidden_size = 32, heads = 2, intermediate_size = 64, pooler = true"


def told(batches: Batches) -> Batches:
    """Write a byte for each micro-batch."""
    collate = batches.collate

    def telling(rows: Rows, epoch: int) -> Batch:
        os.write(sys.stdout.fileno(), b".")
        return collate(rows, epoch)

    batches.collate = telling
    return batches


def main(out: Path, kind: str) -> None:
    torch.set_num_threads(1)
    if kind == "pretrain":
        pretrain_words(out)
        return
    config, model = settings(*SETTINGS), MaskedModel(dropout=0.1)
    objective, data = (
        (masked_objective, masked_batches) if kind == "token" else (MeanPairs(), pairs_of_texts)
    )
    train(
        objective,
        told(data(config)),
        config,
        model=model,
        out=out,
        save_model=model.save,
        resume=bool(checkpoints(out)),
    )


def pretrain_words(out: Path) -> None:
    """Pre-train by a recipe from raw text, judged on held-out text; data lie beside the run."""
    vocabulary, texts = out.parent / "vocabulary", out.parent / "texts.jsonl"
    if not vocabulary.exists():
        write_vocabulary(vocabulary)
        write_texts(texts, 60, sentences=6, words=10)

    def make(*arguments: Any, **options: Any) -> Batches:
        return told(make_batches(*arguments, **options))

    vars(pretraining)["make_batches"] = make
    data = (f"data.train={texts}", f"tokenizer={vocabulary}", "data.held_out=0.1")
    quick = ("device=cpu", "batching.size=32", "segments.max_len=32", "evaluation.every=10")
    recipe = load_recipe(
        pretraining.PretrainRecipe,
        "pretrain",
        "bert",
        [f"model={{{SHAPE}}}", *SETTINGS, *data, *quick],
    )
    pretraining.pretrain(recipe, out, resume=bool(checkpoints(out)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
