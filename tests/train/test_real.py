from pathlib import Path

import pytest
import torch

from sbert_search.models.encoder.weights import load_encoder
from sbert_search.train.loop.log import read_log
from sbert_search.train.loop.loop import train
from tests.train.real import (
    MaskedModel,
    MeanPairs,
    masked_batches,
    masked_objective,
    pairs_of_texts,
)
from tests.train.small import settings, step_losses

QUICK = ("budget.steps=40", "optim.lr=5e-3", "batching.unit=tokens", "batching.size=400")


@pytest.mark.thorough
def test_an_encoder_learns_and_its_checkpoint_is_a_published_folder(tmp_path: Path) -> None:
    config, model = settings(*QUICK, "batching.micro_size=150"), MaskedModel()
    batches = masked_batches(config)
    result = train(
        masked_objective, batches, config, model=model, out=tmp_path, save_model=model.save
    )
    losses = step_losses(read_log(tmp_path / "log.jsonl"))
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert all(batches.lengths[batches.rows(0, step)].sum() <= 600 for step in range(4))
    loaded = dict(load_encoder(result.last / "model").named_parameters())
    for name, parameter in model.encoder.named_parameters():
        assert torch.equal(parameter, loaded[name]), name


@pytest.mark.thorough
def test_pairs_of_texts_find_each_other(tmp_path: Path) -> None:
    config = settings("budget.steps=30", "optim.lr=2e-3", "batching.micro_size=10")
    train(MeanPairs(), pairs_of_texts(config), config, model=MaskedModel(), out=tmp_path)
    losses = step_losses(read_log(tmp_path / "log.jsonl"))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.gpu
def test_a_cuda_device_in_bf16_follows_the_cpu(tmp_path: Path) -> None:
    curves = []
    for device in ("cpu", "cuda"):
        config, model = settings(*QUICK, f"device={device}"), MaskedModel(dropout=0.0)
        out = tmp_path / device
        train(masked_objective, masked_batches(config), config, model=model, out=out)
        curves.append(step_losses(read_log(out / "log.jsonl")))
    assert curves[0] == pytest.approx(curves[1], rel=0.03)
