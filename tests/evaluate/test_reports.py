"""The committed reports are what the code writes and what is expected."""

from pathlib import Path

import pytest

from sbert_search.config import from_mapping
from sbert_search.evaluate.comparison import load_expected
from sbert_search.evaluate.manifest import read_evaluation
from sbert_search.evaluate.metrics.correlation import spearman
from sbert_search.evaluate.metrics.ranking import mean
from sbert_search.evaluate.report import draw
from sbert_search.evaluate.tasks import EvalTask, load_task

EVAL = Path(__file__).parents[2] / "eval"
MODELS = [path.stem for path in (EVAL / "expected").glob("*.toml")]
RECORDS = sorted(path for model in MODELS for path in (EVAL / "reports" / model).glob("*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_committed_record_is_of_this_task_in_fp32_and_as_expected(path: Path) -> None:
    record = read_evaluation(path)
    task = load_task(EVAL / "tasks" / f"{path.stem}.toml")
    assert from_mapping(EvalTask, record["task"]) == task
    assert record["manifest"]["data_sha256"] == task.sha256
    assert record["manifest"]["model"]["precision"] == "fp32"
    assert len(record["manifest"]["code"]["commit"] or "") == 40  # no "-dirty" behind it
    if task.kind == "retrieval":
        scores = {name: mean(values) for name, values in record["per_item"].items()}
        assert scores == record["scores"]
    else:
        predicted, gold = (
            list(record["per_item"][name].values()) for name in ("predicted", "gold")
        )
        assert spearman(predicted, gold) == record["scores"]["spearman"]
    assert path.with_suffix(".svg").read_text("utf-8") == draw(record)
    expected = load_expected(EVAL / "expected" / f"{path.parent.name}.toml")
    assert record["manifest"]["model"]["weights_sha256"] == expected.weights_sha256
    wanted = expected.scores[task.name]
    assert abs(record["scores"][task.main_metric] - wanted.value) <= wanted.tolerance
