from pathlib import Path

import pytest

from sbert_search.errors import ConfigError
from sbert_search.lab.variants.recipe import (
    Tuning,
    VariantsRecipe,
    load_variants,
    pretrain_recipe,
    with_data,
)
from tests.lab.variants.tiny import write_comparison


def test_paths_of_the_data_folder(tmp_path: Path) -> None:
    recipe = load_variants(write_comparison(tmp_path))
    assert recipe.corpus == ("@/train.jsonl",)
    placed = with_data(recipe, tmp_path)
    assert placed.corpus == (f"{tmp_path}/train.jsonl",)
    assert placed.nli is not None
    assert placed.nli.settings[0] == f"data.train={tmp_path}/nli.jsonl"
    assert (placed.tokens, placed.family_settings) == (recipe.tokens, recipe.family_settings)


def test_settings_of_a_pretraining(tmp_path: Path) -> None:
    recipe = VariantsRecipe(
        corpus=("a", "b"),
        held_out=("c",),
        tokens=128 * 32 * 100,
        family_settings={"bert": ("optim.lr=0.5",)},
    )
    made = pretrain_recipe(
        recipe, "bert", 7, vocabulary=tmp_path / "v", tokens=tmp_path / "t", device="mps"
    )
    assert made.device == "mps"
    assert (made.seed, made.budget.tokens, made.batching.size) == (7, 409_600, 32)
    assert made.checkpoint.every == made.evaluation.every == 5  # 100 steps, 20 readings
    assert made.schedule.kind == "constant"
    assert made.data.train == ("a", "b")
    assert made.optim.lr == 0.5
    assert (made.model.layers, made.model.hidden_size) == (4, 256)
    student = pretrain_recipe(
        recipe, "distilbert", 7, vocabulary=tmp_path, tokens=tmp_path, teacher=tmp_path / "bert"
    )
    assert student.teacher == str(tmp_path / "bert")
    assert student.tokenizer is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"families": ()}, "families is empty; name at least one of bert, roberta"),
        ({"families": ("distilbert",)}, "but not bert"),
        ({"families": ("bert", "bart")}, "did you mean 'bert'"),
        ({"tokens": 0}, "tokens is 0"),
        ({"seconds": -1.0}, "seconds is -1"),
        ({"stsb": Tuning(recipe="stsb")}, "add a table"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"corpus": ("a",), "held_out": ("b",), "tokens": 5, **values}
    with pytest.raises(ConfigError, match=message):
        VariantsRecipe(**given)  # type: ignore[arg-type]


def test_paths_may_have_any_character(tmp_path: Path) -> None:
    recipe = VariantsRecipe(corpus=("\U0001f600/a",), held_out=("\u00e9",), tokens=10**6)
    folder = tmp_path / "\U0001f600"
    made = pretrain_recipe(recipe, "bert", 0, vocabulary=folder / "v", tokens=folder / "t")
    assert (made.data.train, made.tokenizer) == (("\U0001f600/a",), folder / "v")
    assert made.data.folder == folder / "t"
