"""`eval/fine_tuning.py`: every experiment from its start to its report, on small data."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.train.bi_encoder import BiEncoderRecipe
from sbert_search.train.cross_encoder import CrossEncoderRecipe
from sbert_search.train.recipe import load_recipe
from tests.cli.process import ROOT
from tests.eval.conftest import Script, any_revision, assert_no_paths

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT / "eval"))
    EXPERIMENTS: Mapping[str, Any] = importlib.import_module("fine_tuning_trials").EXPERIMENTS

BAR = r"\|"  # inside a cell
MANY_RUNS = ("own", "small-labels", "concatenation")
QUICK = ("budget={steps=2}", "batching.size=8", "precision=fp32", "device=cpu")


def test_every_trial_has_settings_that_exist() -> None:
    kinds: dict[str, Any] = {"bi-encoder": BiEncoderRecipe, "cross-encoder": CrossEncoderRecipe}
    trials = [trial for experiment in EXPERIMENTS.values() for trial in experiment.trials]
    assert len(trials) > 20
    for trial in trials:
        recipe = trial.recipe or "stsb"
        overrides = ["model=some", "data.train=some", *trial.settings, "seed=1"]
        assert load_recipe(kinds[trial.kind], trial.kind, recipe, overrides).seed == 1


def test_experiments_that_choose_do_it_on_dev_data() -> None:
    for experiment in EXPERIMENTS.values():
        if experiment.choose:
            assert all(any("data.dev" in s for s in t.settings) for t in experiment.trials)


def test_published_rows_belong_to_trials() -> None:
    for experiment in EXPERIMENTS.values():
        names = {trial.name for trial in experiment.trials}
        assert experiment.published.keys() <= names
        assert {*experiment.against, *experiment.against.values()} == experiment.published.keys()


def quick(experiment: Any) -> Any:
    """The same trials in two steps each, with two seeds."""

    def shortened(trial: Any) -> Any:
        more: tuple[str, ...] = QUICK if trial.recipe else ()
        if trial.recipe == "nli-then-stsb":
            more += tuple(f"first.{setting}" for setting in QUICK[:2])
        if trial.kind == "cross-encoder":
            more += ("max_len=24",)
        before = {name: getattr(trial, name) for name in ("after", "labelled_by")}
        made = {name: shortened(each) for name, each in before.items() if each}
        return replace(trial, settings=(*trial.settings, *more), **made)

    trials = tuple(map(shortened, experiment.trials))
    return replace(experiment, trials=trials, seeds=min(experiment.seeds, 2))


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    module = importlib.import_module("fine_tuning")
    small = {name: quick(experiment) for name, experiment in EXPERIMENTS.items()}
    monkeypatch.setattr(module, "EXPERIMENTS", small)
    monkeypatch.setattr("fine_tuning_bench.find_task", any_revision)


@pytest.mark.thorough
@pytest.mark.usefixtures("shortened")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n in MANY_RUNS else []) for n in EXPERIMENTS],
)
def test_an_experiment_runs_once_and_reports(
    name: str, model: Path, data: Path, tmp_path: Path, script: Script, monkeypatch: Any
) -> None:
    out = tmp_path / "report"
    told = ("--data", data, "--model", model, "--work", tmp_path / "work", "--out", out)
    script("fine_tuning", name, *told)
    record = json.loads((out / f"{name}.json").read_text())
    assert record["missing"] == []
    assert record["command"] == (
        f"python eval/fine_tuning.py {name} --data DATA --model MODEL --work WORK --out OUT"
    )
    assert_no_paths(out / f"{name}.json", data, model, tmp_path)
    text = (out / f"{name}.md").read_text()
    for trial, seeds in record["scores"].items():
        assert f"| {trial.replace('|', BAR)} | {len(seeds)} |" in text
    assert len(record["signs"]) == len(EXPERIMENTS[name].against)
    picture = ElementTree.parse(out / f"{name}.svg")
    dots = picture.iter("{http://www.w3.org/2000/svg}title")
    runs = sum(len(seeds) for seeds in record["scores"].values())
    assert len([*dots]) == runs * len(record["tasks"])
    shown = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {trial.partition(" %, ")[2] or trial for trial in record["scores"]} <= shown

    for training in ("train_bi_encoder", "train_cross_encoder", "evaluate_sts"):
        monkeypatch.setattr(f"fine_tuning_bench.{training}", None)  # nothing is made again
    script("fine_tuning", name, *told)
    assert (out / f"{name}.md").read_text() == text


@pytest.mark.usefixtures("shortened")
def test_a_trial_begins_with_what_it_names(
    model: Path, data: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = importlib.import_module("fine_tuning_bench")
    train, recipes = module.train_cross_encoder, []

    def recorded(recipe: CrossEncoderRecipe, *arguments: Any, **more: Any) -> None:
        recipes.append(recipe)
        train(recipe, *arguments, **more)

    monkeypatch.setattr(module, "train_cross_encoder", recorded)
    bench = module.Bench(str(model), "tiny", data, tmp_path, module.Clock(tmp_path / "clock"))
    taught = importlib.import_module("fine_tuning").EXPERIMENTS["cross-encoder"].trials[-1]
    teacher, nli = taught.after, taught.after.after
    bench.train(taught, 1)
    begun = [bench.start, *(bench.folder(trial, 0) / module.MODEL for trial in (nli, teacher))]
    assert [recipe.model for recipe in recipes] == list(map(str, begun))

    labels = bench.folder(teacher.labelled_by, 0) / "nli-pairs.jsonl"
    assert recipes[1].data.train == labels
    row = json.loads(labels.read_text().splitlines()[0])
    texts = [row["sentence1"], row["sentence2"]]
    u, v = Embedder(bench.folder(teacher.labelled_by, 0) / module.MODEL).encode(texts)
    assert row["score"] == pytest.approx(5 * max(u @ v, 0) / np.sqrt(u @ u * (v @ v)), abs=1e-3)


def test_the_time_of_an_interrupted_run_counts(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = importlib.import_module("fine_tuning_bench")
    times = iter([100.0, 107.0, 200.0, 202.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    clock = module.Clock(tmp_path / "clock.json")
    with pytest.raises(KeyboardInterrupt), clock.timing("a"):
        raise KeyboardInterrupt
    assert clock.seconds() == {"a": 7.0}
    with clock.timing("a"):  # resumes it
        pass
    assert clock.seconds() == {"a": 9.0}


@pytest.mark.thorough
@pytest.mark.usefixtures("shortened")
def test_a_sweep_out_of_time_says_what_is_missing_and_goes_on(
    model: Path, data: Path, tmp_path: Path, script: Script
) -> None:
    out = tmp_path / "report"
    told = ("--data", data, "--model", model, "--work", tmp_path / "work", "--out", out)
    script("fine_tuning", "pooling", "concatenation", *told, "--minutes", 0.0001)
    record = json.loads((out / "pooling.json").read_text())
    assert len(record["missing"]) == 11  # of six trials with two seeds each
    assert len(record["scores"]["mean, nli"]) == 1
    text = (out / "pooling.md").read_text()
    assert "Out of time, so missing: mean, nli, seed 1; " in text
    assert "| max, nli | 0 | missing | 79.07 |" in text
    other = json.loads((out / "concatenation.json").read_text())
    assert len(other["scores"]["(u, v, |u-v|)"]) == 1  # the same run as that of mean pooling
    script("fine_tuning", "pooling", *told)
    assert json.loads((out / "pooling.json").read_text())["missing"] == []


def test_a_correlation_of_zero_is_a_value(script: Script) -> None:
    report: Any = importlib.import_module("fine_tuning_report")
    assert report.values_of([{"spearman": 0.0}, {"accuracy": 0.5}]) == [0.0, 50.0]


def test_signs_are_told_by_the_seeds(script: Script) -> None:
    report: Any = importlib.import_module("fine_tuning_report")

    def seeds(*values: float) -> list[Any]:
        return [{"stsb-dev": {"spearman": value / 100}} for value in values]

    scores = {
        "mean": seeds(70, 71),
        "max": seeds(69, 69),
        "cls": seeds(69, 72),
        "sum": seeds(71, 72),
        "none": [],
    }
    published = {"mean": 80.0, "max": 79.0, "cls": 79.5, "sum": 60.0, "none": 1.0}
    against = dict.fromkeys(["max", "cls", "sum", "none"], "mean")
    assert [*report.signs(scores, "stsb-dev", published, against)] == [
        "'max': the paper has it 1.00 below 'mean'; here it is 1.50 below (by seed -1.00, -2.00): "
        "the sign reproduces.",
        "'cls': the paper has it 0.50 below 'mean'; here it is 0.00 below (by seed -1.00, +1.00): "
        "the seeds disagree, so nothing can be said about the sign.",
        "'sum': the paper has it 20.00 below 'mean'; here it is 1.00 above (by seed +1.00, +1.00): "
        "the sign does not reproduce.",
        "'none': the paper has it 79.00 below 'mean'; it was not measured here.",
    ]
