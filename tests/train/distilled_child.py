"""Distil a tiny teacher, killing itself after so many batches of the teacher or training steps.

Usage: python -m tests.train.distilled_child OUT embed|train|never
The folder of OUT holds the folder ``teacher`` and the file ``texts.txt``.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from sbert_search.embed.embedder import Embedder
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.train.bi_encoder import BiEncoderRecipe, train_bi_encoder
from sbert_search.train.recipe import load_recipe

KILLED_AFTER = {"embed": 1, "train": 5, "never": 1 << 30}
SETTINGS = ("layers=1", "budget.steps=8", "checkpoint.every=2", "batching.size=16", "device=cpu")


def killed_after(cls: Any, method: str, calls: int) -> None:
    """Let a method of a class kill the process instead of being called once more."""
    original, made = getattr(cls, method), 0

    def counted(self: Any, *arguments: Any) -> Any:
        nonlocal made
        if torch.is_grad_enabled() or cls is Embedder:
            made += 1
        if made > calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *arguments)

    setattr(cls, method, counted)


def main(out: Path, kind: str) -> None:
    torch.set_num_threads(1)
    cls, method = (Embedder, "encode_tokens") if kind == "embed" else (BiEncoder, "forward")
    killed_after(cls, method, KILLED_AFTER[kind])
    data = [f"data.train={out.parent / 'texts.txt'}", f"teacher={out.parent / 'teacher'}"]
    recipe = load_recipe(BiEncoderRecipe, "bi-encoder", "distill", [*data, *SETTINGS])
    train_bi_encoder(recipe, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
