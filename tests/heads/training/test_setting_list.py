"""The list of the settings of a task head's recipe makes the same recipe."""

from __future__ import annotations

import pytest

from sbert_search.heads.train_answerer import AnswerRecipe
from sbert_search.heads.train_classifier import ClassifyRecipe
from sbert_search.heads.train_tagger import TagRecipe
from sbert_search.train.loop.loop import TrainConfig
from sbert_search.train.recipe import Kind, shipped_recipes
from tests.train.test_setting_list import assert_the_list_makes_the_recipe

RECIPES: dict[Kind, type[TrainConfig]] = {
    "classify": ClassifyRecipe,
    "tag": TagRecipe,
    "qa": AnswerRecipe,
}
SHIPPED = [(kind, name) for kind in RECIPES for name in shipped_recipes(kind)]


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_the_list_of_a_shipped_recipe_makes_the_same_recipe(kind: Kind, name: str) -> None:
    assert_the_list_makes_the_recipe(RECIPES[kind], kind, name)
