"""Train a small bi-encoder with a preliminary run and mined negatives on the ranks at hand.

Usage: torchrun ... -m tests.train.mining_child OUT
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from sbert_search.base.distributed import join_ranks
from sbert_search.base.progress import set_quiet
from sbert_search.config import from_mapping
from sbert_search.train import bi_encoder as train
from sbert_search.train.bi_encoder import BiEncoderRecipe
from sbert_search.train.data.examples import Example
from sbert_search.train.data.mining import mine_negatives
from tests.models.tiny import tiny_bi_encoder

PAIRS = [("cat sat", "the cat sat"), ("dog ran", "a dog ran"), ("then", "far away and then")]
PAIRS += [("cat", "the cat"), ("sat", "the cat sat on"), ("dog", "a dog")]


def _store_mined(
    out: Path, rank: str, mine: Callable[..., list[Example]], *arguments: object, **more: object
) -> list[Example]:
    mined = mine(*arguments, **more)
    texts: list[Sequence[str]] = [example.texts for example in mined]
    (out / f"mined-{rank}.json").write_text(json.dumps(texts))
    return mined


def main(out: Path) -> None:
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    with join_ranks() as ranks:
        if ranks.first:
            tiny_bi_encoder(out / "tokenizer").save(out / "start")
            rows = [{"query": query, "passage": passage} for query, passage in PAIRS]
            (out / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        ranks.wait()
        if not ranks.first:
            time.sleep(1)  # rank 0 has begun the preliminary run when this rank looks
        vars(train)["mine_negatives"] = partial(_store_mined, out, rank, mine_negatives)
        quick = {
            "data": {"train": str(out / "pairs.jsonl"), "form": "pairs"},
            "loss": {"name": "mnrl"},
            "batching": {"size": 4},
            "budget": {"steps": 2},
        }
        settings = {
            "model": str(out / "start"),
            "device": "cpu",
            "mining": {"negatives": 1, "margin": -10.0},
            "first": quick,
        }
        recipe = from_mapping(BiEncoderRecipe, quick | settings)
        train.train_bi_encoder(recipe, out / "run")
    left = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    (out / f"threads-{rank}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    set_quiet(True)
    main(Path(sys.argv[1]))
