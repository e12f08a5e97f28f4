"""The help of the commands that train: the shipped recipes, and the settings of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sbert_search.cli.train import summary
from sbert_search.train.recipe import Kind, shipped_recipes
from tests.cli.process import sbert_search

NARROW = {"COLUMNS": "80"}


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (
            "train bi-encoder mnrl-nli",
            ["data.train  (required)", "* optim.lr=2e-5", "optim.beta1=0.9", "* loss.name=mnrl"],
        ),
        (
            "train cross-encoder relevance --set mining.negatives=3",
            [
                "* mining.negatives=3 number added to each row",
                "data.depth=50",
                "* loss=list_softmax",
            ],
        ),
        (
            "pretrain bert --set size=tiny",
            ["* model.layers=2", "* optim.lr=0.0005", "* size=tiny", "* mask.static=true"],
        ),
        ("pretrain bert --set size=mini", ["* size=mini size of the encoder: tiny, mini, small"]),
        (
            "train bi-encoder mnrl-nli --data a.csv --dev b.csv --lr 1e-5 --epochs 3 "
            "--batch-size 8 --model m",
            [
                "* data.train=a.csv",
                "* data.dev=b.csv",
                "* optim.lr=1e-5",
                "* budget.epochs=3",
                "* batching.size=8",
                "* model=m",
            ],
        ),
    ],
)
def test_the_help_of_a_recipe_lists_its_settings(line: str, lines: list[str]) -> None:
    done = sbert_search(*line.split(), "--help", env=NARROW)
    assert done.code == 0
    assert all(len(shown) <= 80 for shown in done.out.splitlines())
    plain = re.sub(r" +", " ", done.out)
    for wanted in lines:
        assert re.sub(r" +", " ", wanted) in plain
    assert "Source: " in done.out


def test_the_help_of_a_recipe_file_lists_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('# My own.\n[budget]\nsteps = 7\n[loss]\nname = "mnrl"\n')
    done = sbert_search("train", "bi-encoder", path, "--help")
    assert "My own." in done.out
    assert "* budget.steps=7" in done.out


def test_the_help_of_an_unknown_recipe_or_setting_is_wrong_usage() -> None:
    done = sbert_search("train", "bi-encoder", "mnrl-nly", "--help")
    assert (done.code, "did you mean 'mnrl-nli'" in done.err) == (2, True)
    done = sbert_search("pretrain", "bert", "--set", "optim.lrr=1", "--help")
    assert (done.code, "did you mean 'lr'" in done.err) == (2, True)


def assert_the_help_names_each_recipe(kind: Kind) -> None:
    done = sbert_search(*([kind] if kind == "pretrain" else ["train", kind]), "--help", env=NARROW)
    assert all(len(shown) <= 80 for shown in done.out.splitlines())
    words = " ".join(done.out.split())
    recipes = shipped_recipes(kind)
    for recipe in recipes:
        assert f"{recipe} {summary(kind, recipe)}" in words
    assert recipes


@pytest.mark.parametrize("kind", ["bi-encoder", "cross-encoder", "pretrain"])
def test_the_help_of_a_command_names_each_recipe_in_a_sentence(kind: Kind) -> None:
    assert_the_help_names_each_recipe(kind)
