"""The list of a recipe's settings: names, values, where they come from, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from sbert_search.config import UnknownSettingError, from_mapping, to_mapping
from sbert_search.train.bi_encoder import BiEncoderRecipe
from sbert_search.train.cross_encoder import CrossEncoderRecipe
from sbert_search.train.loop.loop import TrainConfig
from sbert_search.train.pretrain import PretrainRecipe
from sbert_search.train.recipe import Kind, Setting, list_settings, read_recipe, shipped_recipes


@dataclass(frozen=True)
class Shape:
    """A shape.

    Attributes:
        layers: Number of
            ``layers``.

    Raises:
        ConfigError: Never.
    """

    layers: int = 12
    width: int = 8  # of a λ layer; None: free


@dataclass(frozen=True)
class Task:
    """A task."""

    shape: Shape
    kind: Literal["a", "b"] | None = None  # the kind
    other: Shape = field(default_factory=lambda: Shape(layers=2))
    spare: Shape | None = None
    weights: Literal["none", "even"] | tuple[float, ...] = "none"


def test_each_value_has_its_origin_and_meaning() -> None:
    assert list(list_settings(Task, {"other": {"width": 3}})) == [
        Setting("kind", None, "default", "the kind", ("a", "b")),
        Setting("spare", None, "default", ""),
        Setting("weights", "none", "default", "", ("none", "even", "a list")),
        Setting("shape.layers", 12, "default", "Number of layers."),
        Setting("shape.width", 8, "default", "of a λ layer; None: free"),
        Setting("other.layers", 12, "default", "Number of layers."),
        Setting("other.width", 3, "recipe", "of a λ layer; None: free"),
    ]


def test_the_default_of_an_absent_table_is_the_one_of_its_field() -> None:
    values = {setting.name: setting.value for setting in list_settings(Task, {})}
    assert (values["shape.layers"], values["other.layers"]) == (12, 2)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownSettingError, match=r"'other.widht'; did you mean 'width'"):
        list(list_settings(Task, {"other": {"widht": 3}}))


RECIPES: dict[Kind, type[TrainConfig]] = {
    "bi-encoder": BiEncoderRecipe,
    "cross-encoder": CrossEncoderRecipe,
    "pretrain": PretrainRecipe,
}
SHIPPED = [(kind, name) for kind in RECIPES for name in shipped_recipes(kind)]


def assert_the_list_makes_the_recipe(cls: type[TrainConfig], kind: Kind, name: str) -> None:
    needed = [] if kind == "pretrain" else ["data.train=a"]
    needed += ["first.data.train=a"] if name == "nli-then-stsb" else []
    needed += ["teacher=t"] if name.startswith(("distil", "static")) else []
    values = read_recipe(kind, name, needed)
    again: dict[str, Any] = {}
    for setting in list_settings(cls, values):
        assert setting.meaning, setting.name
        *tables, last = setting.name.split(".")
        place = again
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = setting.value
    assert to_mapping(from_mapping(cls, again)) == to_mapping(from_mapping(cls, values))


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_the_list_of_a_shipped_recipe_makes_the_same_recipe(kind: Kind, name: str) -> None:
    assert_the_list_makes_the_recipe(RECIPES[kind], kind, name)
