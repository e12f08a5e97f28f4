"""A second run in the folder of a running one is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search.base import locks
from sbert_search.base.distributed import Ranks
from sbert_search.errors import CheckpointError
from sbert_search.train.loop.checkpoint import checkpoints
from sbert_search.train.pretrain import pretrain
from sbert_search.train.run import sole_run
from tests.train.pretraining.test_pretrain import small_recipe


def pretrain_bert(folder: Path) -> None:
    pretrain(small_recipe("bert", folder, "budget.steps=1"), folder / "run")


def assert_a_second_run_is_refused(train: Callable[[Path], None], folder: Path) -> None:
    out = folder / "run"
    with (
        sole_run(out, Ranks()),
        pytest.raises(CheckpointError, match=rf"Another run writes to .*process {os.getpid()}"),
    ):
        train(folder)
    assert not checkpoints(out)
    train(folder)
    assert checkpoints(out)


def assert_locked_before_checkpoints_are_looked_up(
    train: Callable[[Path], None], folder: Path
) -> None:
    train(folder)
    with (
        sole_run(folder / "run", Ranks()),
        pytest.raises(CheckpointError, match="Another run writes to"),
    ):
        train(folder)


def test_a_second_run_in_a_folder_is_refused(tmp_path: Path) -> None:
    assert_a_second_run_is_refused(pretrain_bert, tmp_path)


def test_the_folder_is_locked_before_checkpoints_are_looked_up(tmp_path: Path) -> None:
    assert_locked_before_checkpoints_are_looked_up(pretrain_bert, tmp_path)


def test_a_new_folder_without_files_of_a_run_is_removed(tmp_path: Path) -> None:
    kept, out = tmp_path / "kept", tmp_path / "run"
    kept.mkdir()
    with sole_run(out, Ranks()), sole_run(kept, Ranks()):
        assert out.exists()
    assert not out.exists()
    assert kept.exists()
    with sole_run(out, Ranks()):
        (out / "log.jsonl").touch()
    assert (out / "log.jsonl").exists()


def test_other_ranks_of_a_run_are_not_others(tmp_path: Path) -> None:
    with sole_run(tmp_path / "run", Ranks(0, 2)), sole_run(tmp_path / "run", Ranks(1, 2)):
        pass


def test_a_folder_that_cannot_be_locked_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_try_lock", lambda fd: True)  # a file system that ignores locks
    with sole_run(tmp_path / "run", Ranks()):
        (tmp_path / "run" / "log.jsonl").touch()
    assert (tmp_path / "run" / "log.jsonl").exists()
