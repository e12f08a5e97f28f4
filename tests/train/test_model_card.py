"""The table of dev figures in a model card; tests of training read whole cards."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from sbert_search.errors import CheckpointError
from sbert_search.train.loop.checkpoint import save_checkpoint
from sbert_search.train.loop.log import LogLine
from sbert_search.train.loop.loop import Result
from sbert_search.train.loop.schedule import RunState
from sbert_search.train.run import publish, table_of_scores


def test_a_figure_that_some_evaluations_lack_is_shown_where_it_is() -> None:
    log: list[LogLine] = [
        {"kind": "dev", "step": 0, "figures": {"found": 0.25}},
        {"kind": "dev", "step": 9, "figures": {"found": 0.5, "triplets": 0.75}},
    ]
    assert table_of_scores(log, "step-00000009").splitlines() == [
        "| step | found | triplets |",
        "|---|---|---|",
        "| 0 | 0.2500 | - |",
        "| 9 (this model) | 0.5000 | 0.7500 |",
    ]


def test_a_run_without_evaluations_says_so() -> None:
    assert table_of_scores([], "step-00001200").endswith("is the model of step 1,200.")


@pytest.mark.parametrize("damaged", [True, False])
def test_a_checkpoint_that_is_damaged_or_gone_is_not_published(
    tmp_path: Path, damaged: bool
) -> None:
    def save(folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")

    last = save_checkpoint(tmp_path, 1, {"model/a": torch.zeros(1)}, {}, "", save)
    result = Result(RunState(step=1), "budget", last, last)
    publish(result, tmp_path / "model")
    if damaged:
        (last / "model" / "model.safetensors").write_bytes(b"weighty")
    else:
        shutil.rmtree(last)
    with pytest.raises(CheckpointError, match=rf"damaged: .* belongs to {last}, whose model is to"):
        publish(result, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == b"weights"
