"""The help of the commands that train task heads."""

from __future__ import annotations

import pytest

from sbert_search.train.recipe import Kind
from tests.cli.test_recipe_help import assert_the_help_names_each_recipe


@pytest.mark.parametrize("kind", ["classify", "tag", "qa"])
def test_the_help_of_a_command_names_each_recipe_in_a_sentence(kind: Kind) -> None:
    assert_the_help_names_each_recipe(kind)
