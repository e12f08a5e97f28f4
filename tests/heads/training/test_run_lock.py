"""A second run in the folder of a running one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.base import locks
from sbert_search.heads.train_classifier import train_classifier
from sbert_search.train.loop.checkpoint import checkpoints
from tests.heads.training.test_classify import recipe
from tests.train.test_run_lock import (
    assert_a_second_run_is_refused,
    assert_locked_before_checkpoints_are_looked_up,
)


def classify(folder: Path) -> None:
    train_classifier(recipe(folder, budget={"steps": 1}), folder / "run")


def test_a_second_run_in_a_folder_is_refused(tmp_path: Path) -> None:
    assert_a_second_run_is_refused(classify, tmp_path)


def test_the_folder_is_locked_before_checkpoints_are_looked_up(tmp_path: Path) -> None:
    assert_locked_before_checkpoints_are_looked_up(classify, tmp_path)


def test_a_folder_that_cannot_be_locked_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_try_lock", lambda fd: True)  # a file system that ignores locks
    classify(tmp_path)
    assert checkpoints(tmp_path / "run")
