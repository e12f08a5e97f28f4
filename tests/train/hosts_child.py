"""Pre-train, and train a bi-encoder, by recipes on the ranks at hand; one rank kills itself once.

Usage: [torchrun ...] -m tests.train.hosts_child FOLDER OUT
FOLDER has the files of `write_data`. Each rank writes to OUT which texts it tokenised, and which
tokens of the pre-training text it read.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from sbert_search.base.arrays import Ints
from sbert_search.base.distributed import join_ranks
from sbert_search.base.progress import set_quiet
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.text.documents import CorpusReader, ReadBatch
from sbert_search.text.tokens.shards import TokenShards
from sbert_search.text.tokens.tokenizer import Ids, TextTokenizer
from sbert_search.train.bi_encoder import BiEncoderRecipe, train_bi_encoder
from sbert_search.train.loop.gradients import StepMetrics
from sbert_search.train.loop.schedule import RunState
from sbert_search.train.loop.step import PlannedStep, Stepper
from sbert_search.train.pretrain import PretrainRecipe, pretrain
from sbert_search.train.recipe import load_recipe
from tests.models.tiny import WORDS, tiny_encoder, tiny_tokenizer
from tests.train.words import WORDS as FREQUENT
from tests.train.words import write_vocabulary

STEPS = 50
LAST, KILLED_AT = 12, 7  # steps of the runs that are compared bit by bit; where a rank dies
SHAPE = "layers=2, hidden_size=32, heads=2, intermediate_size=64, pooler=true"
NO_DROPOUT = "hidden_dropout=0.0, attention_dropout=0.0"
QUICK = ("device=cpu", "precision=fp32", "optim.lr=2e-3", "schedule.warmup=0", "batching.size=16")


def write_data(folder: Path) -> None:
    """Write the texts, the pairs, a vocabulary and the models to start from."""
    write_vocabulary(folder / "vocabulary")
    draw = np.random.default_rng(6)
    texts = (words_of(draw.geometric(0.1, (4, 10)) % len(FREQUENT)) for _ in range(300))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    rows = [[" ".join(draw.choice(WORDS, 5)) for _ in ("query", "passage")] for _ in range(160)]
    lines = (json.dumps({"query": query, "passage": f"{query} {p}"}) for query, p in rows)
    (folder / "pairs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    tokenizer = tiny_tokenizer(folder / "tokens")
    for name, dropout in (("model", 0.0), ("dropout-model", 0.1)):
        encoder = tiny_encoder(hidden_dropout=dropout, attention_dropout=dropout)
        BiEncoder(encoder, tokenizer).save(folder / name)


def words_of(sentences: NDArray[np.int64]) -> str:
    """Return a text with a sentence in each line."""
    return "\n".join(" ".join(FREQUENT[n] for n in sentence) for sentence in sentences)


def masked_words(folder: Path, out: Path, *more: str) -> None:
    """Pre-train with masked words."""
    settings = (
        f"model={{{SHAPE}, {NO_DROPOUT}}}",
        f"tokenizer={folder / 'vocabulary'}",
        f"data.train={folder / 'texts.jsonl'}",
        "data.held_out=0",
        "segments.kind=full-sentences",
        "segments.max_len=16",
        f"budget.steps={STEPS}",
    )
    pretrain(load_recipe(PretrainRecipe, "pretrain", "bert", [*settings, *QUICK, *more]), out)


def pairs(folder: Path, out: Path, *more: str) -> None:
    """Train a bi-encoder with the negatives of the batch, which is on all ranks."""
    settings = (
        f"model={folder / 'model'}",
        f"data.train={folder / 'pairs.jsonl'}",
        "mining.negatives=0",
        f"budget.steps={STEPS}",
    )
    recipe = load_recipe(BiEncoderRecipe, "bi-encoder", "query-passage", [*settings, *QUICK, *more])
    train_bi_encoder(recipe, out)


def compared_with_one_process(folder: Path, out: Path) -> None:
    """Run what 4 ranks and one process must do alike."""
    masked_words(folder, out / "mlm")
    pairs(folder, out / "mnrl")
    pairs(folder, out / "cached", "batching.micro_size=2", "budget.steps=20")


def compared_bit_by_bit(folder: Path, out: Path, name: str) -> None:
    """Run with dropout, whose masks differ between ranks."""
    model = f"model={folder / 'dropout-model'}"
    pairs(folder, out / name, model, f"budget.steps={LAST}", "checkpoint.every=5")


@contextmanager
def dying_once(mark: Path) -> Iterator[None]:
    """Kill this process in the middle of a run, unless the mark says that it was done."""
    take = Stepper.take

    def taken(self: Stepper, planned: PlannedStep, state: RunState, lr: float) -> StepMetrics:
        if state.step == KILLED_AT and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return take(self, planned, state, lr)

    with patch.object(Stepper, "take", taken):
        yield


@contextmanager
def recording(file: Path) -> Iterator[None]:
    """Write which texts are tokenised, which tokens are read, and whether documents are read."""
    tokenised, spans, documents = list[str](), list[tuple[int, int]](), list[int]()
    encode, read, batches = TextTokenizer.encode, TokenShards.tokens, CorpusReader.batches

    def encoding(self: TextTokenizer, texts: Sequence[str]) -> tuple[list[Ids], NDArray[np.int32]]:
        tokenised.extend(texts)
        return encode(self, texts)

    def reading(self: TokenShards, start: int, end: int) -> Ints:
        spans.append((int(start), int(end)))
        return read(self, start, end)

    def opening(self: CorpusReader, *, skip_rows: int = 0) -> Iterator[ReadBatch]:
        documents.append(skip_rows)
        return batches(self, skip_rows=skip_rows)

    with (
        patch.object(TextTokenizer, "encode", encoding),
        patch.object(TokenShards, "tokens", reading),
        patch.object(CorpusReader, "batches", opening),
    ):
        yield
    seen = {"tokenised": tokenised, "spans": spans, "documents": len(documents)}
    file.write_text(json.dumps(seen))


def main(folder: Path, out: Path) -> None:
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    with join_ranks():
        if not (out / "killed").exists():  # else this is the second start
            with recording(out / f"seen-{rank}.json"):
                compared_with_one_process(folder, out)
            compared_bit_by_bit(folder, out, "peace")
        with dying_once(out / "killed") if rank == "2" else nullcontext():
            compared_bit_by_bit(folder, out, "restarted")


if __name__ == "__main__":
    set_quiet(True)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
