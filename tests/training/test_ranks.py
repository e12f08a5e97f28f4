import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sbert_search.errors import CheckpointError, TrainingError
from sbert_search.runtime.distributed import Ranks
from sbert_search.training.loop.gradients import StepContext
from sbert_search.training.loop.log import read_log
from sbert_search.training.loop.loop import train
from sbert_search.training.loop.optim import OptimConfig
from sbert_search.training.loop.step import Stepper
from tests.training.ranks_child import SHARED, main
from tests.training.small import (
    TASKS,
    TokenModel,
    settings,
    step_losses,
    token_batches,
    token_objective,
)

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def two_ranks(child: str, out: Path) -> Iterator[None]:
    """Run a script of this folder on two ranks beside the context; both must succeed."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ranks = subprocess.Popen(
        [*torchrun, "-m", f"tests.training.{child}", str(out)],
        cwd=ROOT,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    yield
    assert ranks.wait(timeout=300) == 0


@pytest.mark.distributed
def test_two_ranks_are_one_with_the_same_batch(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    with two_ranks("ranks_child", two):
        main(one)
    for kind in TASKS:
        curves = [step_losses(read_log(out / f"{kind}-50/log.jsonl")) for out in (one, two)]
        assert len(curves[1]) == 50  # one log, not two
        assert curves[0] == pytest.approx(curves[1], abs=1e-5)
        assert min(curves[0]) < 0.8 * curves[0][0]
        gradients = [load_file(out / f"{kind}-1-gradient-0.safetensors") for out in (one, two)]
        assert gradients[0].keys() == gradients[1].keys()
        for name, gradient in gradients[0].items():
            assert torch.allclose(gradient, gradients[1][name], rtol=0, atol=1e-6), name
        weights = [load_file(two / f"{kind}-50-weights-{rank}.safetensors") for rank in (0, 1)]
        for name, weight in weights[0].items():
            assert torch.equal(weight, weights[1][name]), name
    config = settings(*SHARED, "budget.steps=50")
    with pytest.raises(CheckpointError, match="ranks was 2, is 1"):
        train(
            token_objective,
            token_batches(config),
            config,
            model=TokenModel(0.0),
            out=two / "token-50",
            resume=True,
        )


def test_rows_are_shared_out_once_and_balanced() -> None:
    batches, model = token_batches(settings()), TokenModel()
    shares = []
    for rank in range(3):
        context = StepContext(torch.device("cpu"), torch.float32, Ranks(rank, 3), seed=0)
        stepper = Stepper(token_objective, batches, model, OptimConfig(), context)
        shares.append(next(stepper.plan(0, 0, None)).parts[0])
    assert sorted(row for share in shares for row in share) == sorted(batches.rows(0, 0).tolist())
    tokens = [batches.lengths[share].sum() for share in shares]
    assert max(tokens) < 1.3 * min(tokens)


def test_a_step_smaller_than_the_world_is_refused() -> None:
    batches = token_batches(settings("batching.size=2"))
    context = StepContext(torch.device("cpu"), torch.float32, Ranks(2, 3), seed=0)
    stepper = Stepper(token_objective, batches, TokenModel(), OptimConfig(), context)
    with pytest.raises(TrainingError, match="2 rows is too small for 3 ranks"):
        next(stepper.plan(0, 0, None))


@pytest.mark.distributed
def test_two_ranks_mine_and_train_the_preliminary_model_once(tmp_path: Path) -> None:
    with two_ranks("mining_child", tmp_path):
        pass
    assert len(step_losses(read_log(tmp_path / "run/first/log.jsonl"))) == 2
    mined = [(tmp_path / f"mined-{rank}.json").read_text() for rank in (0, 1)]
    assert mined[0] == mined[1] != "[]"
    assert len(list((tmp_path / "run/mining").iterdir())) == 1
    assert len(step_losses(read_log(tmp_path / "run/log.jsonl"))) == 2  # one log, not two
    assert (tmp_path / "run/model/model.safetensors").is_file()


@pytest.mark.distributed
def test_the_first_rank_alone_publishes_the_best_cross_encoder(tmp_path: Path) -> None:
    with two_ranks("cross_encoder_child", tmp_path):
        pass
    assert [path.name for path in tmp_path.glob("published-*")] == ["published-0"]
    best = (tmp_path / "run" / "best").read_text()
    newest = max(path.name for path in (tmp_path / "run").glob("ckpt-*"))
    assert best != newest  # so that the other rank, which does not know the best, would be seen
    weights = [
        (tmp_path / "run" / folder / "model.safetensors").read_bytes()
        for folder in ("model", f"{best}/model")
    ]
    assert weights[0] == weights[1]
