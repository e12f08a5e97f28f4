import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sbert_search.base.distributed import Ranks
from sbert_search.models.embedding_losses import multiple_negatives_ranking
from sbert_search.train.loop.gradients import StepContext, add_in_batch_gradients
from sbert_search.train.loop.objective import Batch, Losses
from tests.train.small import PairObjective, TokenModel, pair_batches, settings

CONTEXT = StepContext(torch.device("cpu"), torch.float32, Ranks(), seed=5, step=3)


def micro_batches(size: int) -> list[Batch]:
    batches = pair_batches(settings())
    rows = batches.rows(0, 0)
    return [batches.collate(part, 0) for part in batches.micro_batches(rows, size)]


def gradients(model: TokenModel) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def cached(batches: Sequence[Batch], dropout: float) -> tuple[dict[str, Tensor], float]:
    model = TokenModel(dropout)
    totals = add_in_batch_gradients(model, PairObjective(), batches, CONTEXT)
    return gradients(model), totals.losses["mnrl"][0].item()


def direct(batches: Sequence[Batch], dropout: float) -> tuple[dict[str, Tensor], float]:
    """One graph over all micro-batches, as no large batch could have it."""
    model, parts = TokenModel(dropout), []
    for number, batch in enumerate(batches):
        with CONTEXT.forward(number):
            parts.append(PairObjective().embed(model, batch))
    embeddings = torch.cat(parts)
    loss = multiple_negatives_ranking(embeddings[:, 0], embeddings[:, 1])
    torch.autograd.backward(loss)
    return gradients(model), loss.item()


@pytest.mark.parametrize("size", [32, 8, 5])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_the_direct_step(size: int, dropout: float) -> None:
    batches = micro_batches(size)
    (ours, loss), (theirs, reference) = cached(batches, dropout), direct(batches, dropout)
    assert loss == pytest.approx(reference, abs=1e-6)
    assert set(ours) == set(theirs)
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name], rtol=0, atol=1e-5), name
        assert gradient.abs().max() > 1e-4


def test_parts_do_not_change_the_gradient_without_dropout() -> None:
    whole, _ = cached(micro_batches(32), 0.0)
    parts, _ = cached(micro_batches(5), 0.0)
    for name, gradient in whole.items():
        assert torch.allclose(gradient, parts[name], rtol=0, atol=1e-5), name


@pytest.mark.parametrize("spoiled", [(3,), (1, 4), ()])
def test_rows_of_micro_batches_with_bad_embeddings_are_named(spoiled: tuple[int, ...]) -> None:
    batches = micro_batches(8)
    parts = [batch.rows for batch in batches]
    assert len(parts) == 4

    class Spoiling(PairObjective):
        def embed(self, model: nn.Module, batch: Batch) -> Tensor:
            embeddings = super().embed(model, batch)
            bad = any(np.array_equal(batch.rows, parts[at - 1]) for at in spoiled)
            return embeddings * float("nan") if bad else embeddings

        def loss(self, embeddings: Tensor, targets: Tensor | None) -> Losses:
            losses = super().loss(embeddings, targets)
            total, count = losses.sums["mnrl"]
            return Losses({"mnrl": (total * float("nan"), count)})

    totals = add_in_batch_gradients(TokenModel(0.0), Spoiling(), batches, CONTEXT)
    named = [parts[at - 1] for at in spoiled] or parts  # none is bad: the loss of all of them is
    assert np.array_equal(totals.non_finite_rows(parts), np.concatenate(named))


def peak_bytes(out: Path, size: int, micro_size: int) -> int:
    """Anonymous memory of a process of its own at its highest."""
    command = (sys.executable, "-m", "tests.train.memory_child", str(out))
    done = subprocess.run(
        [*command, str(size), str(micro_size)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        check=True,
    )
    return int(done.stdout)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="anonymous memory is counted on Linux only")
def test_a_batch_of_1024_takes_little_more_memory_than_one_of_64(tmp_path: Path) -> None:
    small = peak_bytes(tmp_path / "small", 64, 64)
    assert peak_bytes(tmp_path / "large", 1024, 64) < 1.3 * small
    assert peak_bytes(tmp_path / "direct", 256, 256) > 1.3 * small  # what it is spared
