"""The experiments of `eval/`: that every trial has a recipe with settings that exist."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from sbert_search.training.recipe import load_recipe
from sbert_search.training.reranker import CrossEncoderRecipe
from sbert_search.training.siamese import BiEncoderRecipe
from tests.cli.process import ROOT


@pytest.fixture(scope="module")
def experiments() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "eval"))
        return importlib.import_module("fine_tuning").EXPERIMENTS


def test_every_trial_has_settings_that_exist(experiments: Any) -> None:
    kinds: dict[str, Any] = {"bi-encoder": BiEncoderRecipe, "cross-encoder": CrossEncoderRecipe}
    trials = [trial for experiment in experiments.values() for trial in experiment.trials]
    assert len(trials) > 20
    for trial in trials:
        recipe = trial.recipe or "stsb"
        overrides = ["model=some", "data.train=some", *trial.settings, "seed=1"]
        assert load_recipe(kinds[trial.kind], trial.kind, recipe, overrides).seed == 1


def test_experiments_that_choose_do_it_on_dev_data(experiments: Any) -> None:
    for experiment in experiments.values():
        if experiment.choose:
            assert all(any("data.dev" in s for s in t.settings) for t in experiment.trials)
