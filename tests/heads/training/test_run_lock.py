"""A second run in the folder of a running one is refused."""

from __future__ import annotations

from pathlib import Path

from sbert_search.heads.train_classifier import train_classifier
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
