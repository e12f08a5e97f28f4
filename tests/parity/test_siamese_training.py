"""Twenty steps of training beside sentence-transformers' own trainer, and our loss inside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import losses as library
from sentence_transformers.sentence_transformer.losses.triplet import TripletDistanceMetric
from torch import Tensor, nn
from torch.utils.data import BatchSampler, SequentialSampler

from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.embedding_losses import multiple_negatives_ranking
from sbert_search.train import bi_encoder as train
from sbert_search.train.bi_encoder_losses import Siamese
from sbert_search.train.data.text_dataset import TextBatches
from sbert_search.train.loop.log import read_log
from sbert_search.train.recipe import load_recipe
from tests.models.tiny import WORDS, tiny_encoder, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, BATCH = 20, 8
LABELS = ["contradiction", "entailment", "neutral"]
Rows = list[dict[str, Any]]


def rows_of(*columns: str, **more: Callable[[int], Any]) -> Rows:
    draw = np.random.default_rng(2)
    return [
        {name: " ".join(draw.choice(WORDS, draw.integers(2, 12))) for name in columns}
        | {name: value(n) for name, value in more.items()}
        for n in range(STEPS * BATCH)
    ]


PAIR, THREE = ("sentence1", "sentence2"), ("anchor", "positive", "negative")
DATA: dict[str, Rows] = {
    "nli": rows_of(*PAIR, label=lambda n: LABELS[n % 3]),
    "stsb": rows_of(*PAIR, score=lambda n: n % 6),
    "triplet": rows_of(*THREE),
    "mnrl-nli": rows_of(*THREE),
}


def in_order(batches: TextBatches, epoch: int) -> list[np.ndarray[Any, Any]]:
    return list(np.split(np.arange(STEPS * BATCH), STEPS))


def sequential(dataset: Dataset, batch_size: int, drop_last: bool, **_: Any) -> BatchSampler:
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model without dropout."""
    encoder = tiny_encoder(hidden_dropout=0.0, attention_dropout=0.0, initializer_range=0.2)
    BiEncoder(encoder, tiny_tokenizer(tmp_path / "tokens")).save(tmp_path / "model")
    return tmp_path / "model"


def library_losses(
    model: Path,
    loss_of: Callable[[SentenceTransformer], nn.Module],
    rows: Rows,
    lr: float,
    clip: float,
) -> list[float]:
    """Train by the library; the loss of every step."""
    loaded = SentenceTransformer(str(model), device="cpu", local_files_only=True)
    loss = loss_of(loaded)
    seen: list[float] = []
    loss.register_forward_hook(lambda module, given, out: seen.append(out.item()))
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(model.parent / "library"),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=lr,
        lr_scheduler_type="linear",
        warmup_steps=STEPS // 10,
        weight_decay=0.01,
        max_grad_norm=clip,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        batch_sampler=sequential,  # type: ignore[arg-type]
    )
    trainer = SentenceTransformerTrainer(
        model=loaded, args=arguments, train_dataset=Dataset.from_list(rows), loss=loss
    )
    trainer.train()
    return seen


def classifier() -> nn.Linear:
    torch.manual_seed(7)
    return nn.Linear(3 * 16, 3)


def softmax(loaded: SentenceTransformer) -> nn.Module:
    loss = library.SoftmaxLoss(loaded, embedding_dimension=16, num_labels=3)
    loss.classifier.load_state_dict(classifier().state_dict())
    return loss


LIBRARY: dict[str, Callable[[SentenceTransformer], nn.Module]] = {
    "nli": softmax,
    "stsb": library.CosineSimilarityLoss,
    "triplet": lambda loaded: library.TripletLoss(
        loaded, distance_metric=TripletDistanceMetric.EUCLIDEAN, triplet_margin=1.0
    ),
    "mnrl-nli": lambda loaded: library.MultipleNegativesRankingLoss(loaded, scale=20.0),
}


# The library clips without the weights of the loss, which only its classifier has; at a rate that
# shows every difference of an update, neither clips.
@pytest.mark.thorough
@pytest.mark.parametrize(("lr", "clip"), [(2e-5, 1.0), (1e-3, 0.0)])
@pytest.mark.parametrize("name", LIBRARY)
def test_twenty_steps_follow_the_library(
    model: Path, monkeypatch: pytest.MonkeyPatch, name: str, lr: float, clip: float
) -> None:
    rows = DATA[name]
    data = model.parent / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.setattr(TextBatches, "plan", in_order)
    monkeypatch.setattr(
        "sbert_search.train.bi_encoder.Siamese",
        lambda encoder, own: Siamese(encoder, classifier() if name == "nli" else own),
    )
    settings = [f"model={model}", f"data.train={data}", f"budget.steps={STEPS}", f"optim.lr={lr}"]
    form = "triplets" if "anchor" in rows[0] else "pairs"
    settings += [
        f"optim.clip={clip}",
        f"batching.size={BATCH}",
        f"data.form={form}",
        "device=cpu",
        "precision=fp32",
    ]
    recipe = load_recipe(train.BiEncoderRecipe, "bi-encoder", name, settings)
    train.train_bi_encoder(recipe, model.parent / "ours")
    log = read_log(model.parent / "ours" / "log.jsonl")
    ours = [line["loss"] for line in log if line["kind"] == "step"]

    number = {"label": LABELS.index, "score": lambda score: score / 5}
    theirs = [{k: number[k](v) if k in number else v for k, v in row.items()} for row in rows]
    expected = library_losses(model, LIBRARY[name], theirs, lr, clip)
    assert len(ours) == len(expected) == STEPS
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)


class OurLoss(nn.Module):
    """Multiple negatives of this package, as the library's trainer calls a loss."""

    def __init__(self, loaded: SentenceTransformer) -> None:
        super().__init__()
        self.model = loaded

    def forward(self, features: list[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        anchors, *others = (self.model(column)["sentence_embedding"] for column in features)
        return multiple_negatives_ranking(anchors, torch.cat(others))


@pytest.mark.thorough
def test_our_loss_runs_inside_the_library_trainer(model: Path) -> None:
    ours = library_losses(model, OurLoss, DATA["mnrl-nli"], 1e-3, 1.0)
    theirs = library_losses(model, LIBRARY["mnrl-nli"], DATA["mnrl-nli"], 1e-3, 1.0)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert ours[-1] != ours[0]
