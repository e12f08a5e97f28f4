"""Small models, data and settings that the tests of the loop share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sbert_search.base.tensors import write_tensors
from sbert_search.config import from_mapping, with_overrides
from sbert_search.models.embedding_losses import multiple_negatives_ranking
from sbert_search.models.logit_losses import IGNORED, token_cross_entropy
from sbert_search.train.loop.checkpoint import newest_checkpoint
from sbert_search.train.loop.log import LogLine, read_log
from sbert_search.train.loop.loop import TrainConfig
from sbert_search.train.loop.objective import (
    Batch,
    Batches,
    InBatchObjective,
    Losses,
    Objective,
    Rows,
)

VOCAB, DIM = 40, 16


class TokenModel(nn.Module):
    """Tells the class of each token; enough layers to have every kind of parameter."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.inner = nn.Linear(DIM, DIM)
        self.norm = nn.LayerNorm(DIM)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(DIM, VOCAB)
        self.outer.weight = self.embedding.weight  # shared, as masked language models have it

    def hidden(self, input_ids: Tensor) -> Tensor:
        states = self.dropout(self.embedding(input_ids))
        hidden: Tensor = self.norm(states + torch.tanh(self.inner(states)))
        return hidden

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.outer(self.hidden(input_ids))
        return logits

    def save(self, folder: Path) -> None:
        folder.mkdir()
        write_tensors(folder / "model.safetensors", dict(self.named_parameters()))


def table(batch: Batch) -> dict[str, Tensor]:
    """The inputs of a batch of tokens or of pairs, by name."""
    assert isinstance(batch.inputs, dict)
    return batch.inputs


def token_objective(model: nn.Module, batch: Batch) -> Losses:
    """Predict some of the tokens; most rows have a few scored ones, some have none."""
    inputs = table(batch)
    logits, labels = model(inputs["input_ids"]), inputs["labels"]
    scored = labels != IGNORED
    right = ((logits.argmax(-1) == labels) & scored).sum()
    size = (logits.pow(2).sum(), len(labels))
    return Losses(
        sums={"tokens": token_cross_entropy(logits, labels), "size": size},
        weights={"size": 1e-3},
        metrics={"accuracy": (right, scored.sum())},
    )


def token_batches(config: TrainConfig, rows: int = 200) -> Batches:
    draw = np.random.default_rng(3)
    texts = [draw.integers(0, VOCAB, draw.integers(1, 13)) for _ in range(rows)]
    labels = [np.where(draw.random(len(t)) < 0.3, t, IGNORED) for t in texts]

    def collate(chosen: Rows, epoch: int) -> Batch:
        ids = torch.from_numpy(np.concatenate([texts[row] for row in chosen]))
        goal = torch.from_numpy(np.concatenate([labels[row] for row in chosen]))
        counts = {"tokens": int((goal != IGNORED).sum()), "size": len(goal)}
        return Batch({"input_ids": ids, "labels": goal}, chosen, counts)

    lengths = [len(text) for text in texts]
    return Batches(lengths, collate, config.batching, seed=config.seed, fingerprint="token data 3")


class PairObjective:
    """Two texts of a row belong together; the other rows of the step are the negatives."""

    def embed(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, TokenModel)
        ids = table(batch)["input_ids"]  # (rows, 2, tokens)
        return model.hidden(ids).mean(dim=2)  # (rows, 2, DIM)

    def loss(self, embeddings: Tensor, targets: Tensor | None) -> Losses:
        assert targets is not None
        assert len(targets) == len(embeddings)
        return Losses({"mnrl": (multiple_negatives_ranking(embeddings[:, 0], embeddings[:, 1]), 1)})


def pair_batches(config: TrainConfig, rows: int = 200, tokens: int = 6) -> Batches:
    draw = np.random.default_rng(4)
    ids = torch.from_numpy(draw.integers(0, VOCAB, (rows, 2, tokens)))
    ids[:, 1, : tokens // 2] = ids[:, 0, : tokens // 2]

    def collate(chosen: Rows, epoch: int) -> Batch:
        return Batch({"input_ids": ids[chosen]}, chosen, targets=torch.from_numpy(chosen))

    lengths = [2 * tokens] * rows
    return Batches(lengths, collate, config.batching, seed=config.seed, fingerprint="pair data 4")


Task = tuple[Objective | InBatchObjective, Callable[[TrainConfig], Batches]]
TASKS: dict[str, Task] = {
    "token": (token_objective, token_batches),
    "pair": (PairObjective(), pair_batches),
}


def settings(*overrides: str, **values: Any) -> TrainConfig:
    """Make settings for a quick run on the CPU."""
    quick = {"device": "cpu", "budget": {"steps": 12}, "optim": {"lr": 1e-2}}
    return from_mapping(TrainConfig, with_overrides(quick | values, overrides))


def step_losses(log: Sequence[LogLine]) -> list[float]:
    return [line["loss"] for line in log if line["kind"] == "step"]


def lasting_lines(out: Path) -> list[LogLine]:
    """Lines of the log that are a function of the settings and the data."""
    return [line for line in read_log(out / "log.jsonl") if line["kind"] in ("step", "dev")]


def unlike(one: Path, other: Path) -> list[str]:
    """Name what two runs did not end with bit for bit: weights, optimizer state, log."""
    tensors = [
        {f"{part}/{name}": t for part in ("model", "optim") for name, t in c.tensors(part).items()}
        for c in (newest_checkpoint(one), newest_checkpoint(other))
    ]
    names = tensors[0].keys() | tensors[1].keys()
    found = [n for n in sorted(names) if not all(n in t for t in tensors)]
    found += [n for n in sorted(names - {*found}) if not torch.equal(*(t[n] for t in tensors))]
    return found + ["log.jsonl"] * (lasting_lines(one) != lasting_lines(other))
