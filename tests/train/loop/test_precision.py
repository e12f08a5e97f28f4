"""A run takes the faster precision, stores why, and keeps it when it resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sbert_search.config import to_mapping
from sbert_search.errors import CheckpointError
from sbert_search.train.loop.checkpoint import newest_checkpoint
from sbert_search.train.loop.loop import Result, train
from tests.models.encoder.measured import verdict
from tests.models.tiny import tiny_encoder
from tests.train.small import TokenModel, settings, token_batches, token_objective

MEASURE = "sbert_search.train.loop.loop.training_precision"


class WithEncoder(TokenModel):
    """A model that has an encoder, which is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = tiny_encoder().requires_grad_(False)


def run(out: Path, *overrides: str, resume: bool = False) -> Result:
    config = settings("device=cpu", "budget.steps=4", *overrides)
    model = WithEncoder()
    batches = token_batches(config)
    return train(token_objective, batches, config, model=model, out=out, resume=resume)


def stored(out: Path) -> tuple[object, object]:
    """Precision and verdict in the newest checkpoint."""
    state = newest_checkpoint(out).state
    circumstances = state["circumstances"]
    assert isinstance(circumstances, dict)
    return circumstances["precision"], state["verdict"]


def bits(out: Path) -> dict[str, torch.Tensor]:
    return newest_checkpoint(out).tensors("model")


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The precision that a measurement finds faster; a test may change it."""
    found = ["bf16"]
    monkeypatch.setattr(MEASURE, lambda *_, **__: verdict(found[0]))
    return found


@pytest.mark.thorough
def test_auto_takes_the_faster_and_stores_the_figures(tmp_path: Path, faster: list[str]) -> None:
    run(tmp_path / "a")
    assert stored(tmp_path / "a") == ("bfloat16", to_mapping(verdict("bf16")))
    run(tmp_path / "b", "precision=bf16")
    assert stored(tmp_path / "b") == ("bfloat16", None)
    faster[0] = "fp32"
    run(tmp_path / "c")
    assert stored(tmp_path / "c") == ("float32", to_mapping(verdict("fp32")))
    named, measured = bits(tmp_path / "b"), bits(tmp_path / "a")
    assert all(torch.equal(named[name], measured[name]) for name in named)


@pytest.mark.thorough
def test_a_resumed_run_keeps_the_precision_of_its_checkpoint(
    tmp_path: Path, faster: list[str]
) -> None:
    run(tmp_path / "whole", "checkpoint.every=2")
    run(tmp_path / "pieces", "checkpoint.every=2")
    last = newest_checkpoint(tmp_path / "pieces").path
    last.rename(last.with_suffix(".gone"))  # as if the run had been killed after step 2
    faster[0] = "fp32"  # another day the measurement ends otherwise
    run(tmp_path / "pieces", "checkpoint.every=2", resume=True)
    assert stored(tmp_path / "pieces") == stored(tmp_path / "whole")
    whole, pieces = bits(tmp_path / "whole"), bits(tmp_path / "pieces")
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_a_resumed_run_refuses_another_precision_that_is_named(
    tmp_path: Path, faster: list[str]
) -> None:
    run(tmp_path)
    with pytest.raises(CheckpointError, match="precision was 'bfloat16', is 'float32'"):
        run(tmp_path, "precision=fp32", resume=True)


def test_what_is_measured_is_a_step_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, int]] = []
    monkeypatch.setattr(MEASURE, lambda _, **about: asked.append(about))
    run(tmp_path / "rows", "batching.size=10")
    run(tmp_path / "micro", "batching.size=10", "batching.micro_size=5")
    mean = float(token_batches(settings()).lengths.mean())
    assert asked == [
        {"tokens": round(10 * mean), "length": round(mean)},
        {"tokens": round(5 * mean), "length": round(mean)},
    ]
    assert stored(tmp_path / "rows") == ("float32", None)
