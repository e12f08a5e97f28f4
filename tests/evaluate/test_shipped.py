"""The tasks of this repository on the real data sets."""

from pathlib import Path

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import check_files, load_task
from sbert_search.text.labelled.pairs import read_pairs

EVAL = Path(__file__).parents[2] / "eval"
MADE = "squad-wikipedia-101k"  # by a script, which has a test of its own
TASKS = [path for path in sorted((EVAL / "tasks").glob("*.toml")) if path.stem != MADE]


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_the_data_are_the_revision_that_the_task_names(path: Path, real_data: Path) -> None:
    task = load_task(path)
    assert check_files(task, real_data, [real_data / name for name in task.sha256]) == task.sha256


@pytest.mark.parametrize(("name", "shared"), [("sts13", 597), ("sts15", 1102), ("stsb", 12)])
def test_pairs_of_stsb_training_are_left_out(name: str, shared: int, real_data: Path) -> None:
    seen = read_pairs(real_data / "stsb" / "train.jsonl.gz")
    task = load_task(EVAL / "tasks" / f"{name}.toml")
    result = evaluate_sts(task, HashingEmbedder(), data=real_data, trained_on=seen)
    assert result.counts["pairs left out (trained on)"] == shared
