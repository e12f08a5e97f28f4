"""The table of dev figures in a model card; tests of training read whole cards."""

from __future__ import annotations

from sbert_search.training.loop.log import LogLine
from sbert_search.training.model_card import table_of_scores


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
