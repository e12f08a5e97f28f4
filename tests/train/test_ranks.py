import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sbert_search.base.distributed import TIMEOUT, Ranks, join_ranks, timeout
from sbert_search.base.progress import reporting
from sbert_search.errors import CheckpointError, ConfigError, TrainingError
from sbert_search.train.loop.gradients import StepContext
from sbert_search.train.loop.log import read_log
from sbert_search.train.loop.loop import train
from sbert_search.train.loop.optim import OptimConfig
from sbert_search.train.loop.step import Stepper
from tests.train import hosts_child
from tests.train.ranks_child import SHARED, main
from tests.train.small import (
    TASKS,
    TokenModel,
    settings,
    step_losses,
    token_batches,
    token_objective,
    unlike,
)

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def two_ranks(child: str, out: Path) -> Iterator[None]:
    """Run a script of this folder on two ranks beside the context; both must succeed."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ranks = subprocess.Popen(
        [*torchrun, "-m", f"tests.train.{child}", str(out)],
        cwd=ROOT,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    yield
    assert ranks.wait(timeout=300) == 0


def test_another_rank_is_quiet_only_while_it_has_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    before = reporting()
    with join_ranks() as ranks:
        assert ranks == Ranks(1, 2, 0)
        assert reporting().quiet
    assert reporting() == before


@pytest.mark.thorough
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


@pytest.mark.thorough
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
    # A thread of a process group that is still alive may abort the process when Python ends.
    assert "gloo" not in "".join((tmp_path / f"threads-{rank}.json").read_text() for rank in (0, 1))


@pytest.mark.thorough
@pytest.mark.distributed
def test_all_ranks_save_and_stop_if_one_is_asked_to(tmp_path: Path) -> None:
    with two_ranks("stopped_child", tmp_path):
        pass
    assert [path.name for path in sorted(tmp_path.glob("stopped-*"))] == ["stopped-0", "stopped-1"]
    assert [path.name for path in (tmp_path / "run").glob("ckpt-*")] == ["ckpt-00000005"]


@pytest.mark.thorough
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


HOSTS = ("127.0.0.1", "127.0.0.2")
HOST_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOSTS[0], 0))
        port: int = probe.getsockname()[1]
    return port


def start_hosts(*program: object, max_restarts: int = 0) -> list[subprocess.Popen[str]]:
    """Start torchrun with two ranks for each of two hosts."""
    port = free_port()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOSTS[0]}:{port}", "--rdzv-id=test"]
    torchrun += [f"--max-restarts={max_restarts}"]
    child = ["-m", *map(str, program)]
    own = [
        [f"--local-addr={host}", f"--rdzv-conf=is_host={int(host == HOSTS[0])}"] for host in HOSTS
    ]
    return [
        subprocess.Popen(
            [*torchrun, *options, *child],
            cwd=ROOT,
            env=dict(os.environ, **HOST_ENVIRONMENT),
            stderr=subprocess.PIPE,
            text=True,
        )
        for options in own
    ]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of 4 ranks on two hosts, one of which is killed, and the same runs of one process."""
    folder = tmp_path_factory.mktemp("hosts")
    hosts_child.write_data(folder)
    for name in ("one", "four"):
        (folder / name).mkdir()
    agents = start_hosts("tests.train.hosts_child", folder, folder / "four", max_restarts=2)
    hosts_child.compared_with_one_process(folder, folder / "one")
    errors = [agent.communicate(timeout=300)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(errors)
    (folder / "errors").write_text("\n".join(errors))
    return folder


@pytest.mark.thorough
@pytest.mark.distributed
@pytest.mark.parametrize(("run", "steps"), [("mlm", 50), ("mnrl", 50), ("cached", 20)])
def test_four_ranks_on_two_hosts_have_the_losses_of_one_process(
    hosts: Path, run: str, steps: int
) -> None:
    one, four = (
        step_losses(read_log(hosts / name / run / "log.jsonl")) for name in ("one", "four")
    )
    assert len(one) == steps
    assert four == pytest.approx(one, abs=1e-5)
    assert min(one) < 0.95 * one[0]


@pytest.mark.distributed
def test_a_killed_rank_is_restarted_and_the_run_ends_in_the_same_bits(hosts: Path) -> None:
    assert (hosts / "four" / "killed").exists()
    assert not unlike(hosts / "four" / "peace", hosts / "four" / "restarted")
    losses = step_losses(read_log(hosts / "four" / "restarted" / "log.jsonl"))
    assert len(losses) == hosts_child.LAST
    models = [
        (hosts / "four" / run / "model/model.safetensors").read_bytes()
        for run in ("peace", "restarted")
    ]
    assert models[0] == models[1]
    assert "lost another rank, which ended" in (hosts / "errors").read_text()


@pytest.mark.thorough
@pytest.mark.distributed
def test_a_rank_neither_tokenises_nor_reads_what_belongs_to_the_others(hosts: Path) -> None:
    seen = [json.loads((hosts / "four" / f"seen-{rank}.json").read_text()) for rank in range(4)]
    assert [each["documents"] for each in seen] == [1, 0, 0, 0]  # the first writes the tokens
    rows = (json.loads(line) for line in (hosts / "pairs.jsonl").read_text().splitlines())
    texts = {text for row in rows for text in row.values()}
    shares = [set(each["tokenised"]) for each in seen]
    assert set.union(*shares) == texts
    assert sum(map(len, shares)) == len(texts)
    assert max(map(len, shares)) <= len(texts) / 4 + 1
    read = [{n for span in each["spans"] for n in range(*span)} for each in seen]
    assert min(map(len, read)) > 0
    assert sum(map(len, read)) == len(set.union(*read))


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The messages of two ranks, of which the second has another recipe, and then stops."""
    folder = tmp_path_factory.mktemp("lost")
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": HOSTS[0], "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.lost_child", str(folder)],
            cwd=ROOT,
            env={**os.environ, **HOST_ENVIRONMENT, **shared, "RANK": str(rank), TIMEOUT: "4"},
        )
        for rank in (0, 1)
    ]
    try:
        assert ranks[0].wait(timeout=100) == 1
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return folder


@pytest.mark.thorough
@pytest.mark.distributed
def test_ranks_with_different_recipes_are_refused_by_name(lost: Path) -> None:
    messages = [(lost / f"differs-{rank}").read_text() for rank in (0, 1)]
    assert messages[0] == messages[1]
    assert messages[0].startswith("Rank 1 (on ")
    assert "recipe.optim.lr is 0.2 on rank 0 and 0.1 on rank 1. Start all ranks" in messages[0]
    assert not list(lost.glob("run/ckpt-*"))


@pytest.mark.distributed
def test_a_rank_that_stops_answering_ends_the_others_within_the_time_out(lost: Path) -> None:
    message = (lost / "lost").read_text()
    assert message.startswith("Rank 0 of 2, on ")
    assert "lost another rank" in message
    assert message.endswith("A rank waits 4 s for the others (SBERT_SEARCH_RANK_TIMEOUT).")


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan"])
def test_a_time_out_that_is_no_number_of_seconds_is_refused(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TIMEOUT, given)
    with pytest.raises(ConfigError, match=f"{TIMEOUT} is '{given}'; give a number of seconds"):
        timeout()


def test_restarts_for_which_torchrun_keeps_old_addresses_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with (
        pytest.raises(ConfigError, match="needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
        join_ranks(),
    ):
        pass
