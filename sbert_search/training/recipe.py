"""Recipes: TOML of frozen dataclasses, shipped by name or given as a file, any key settable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from sbert_search.config import from_mapping, read_toml, unknown_name, with_overrides
from sbert_search.errors import ConfigError

T = TypeVar("T")

Kind = Literal["pretrain", "bi-encoder", "cross-encoder"]

SHIPPED = Path(__file__).parent / "recipes"
"""Holds a folder of recipes for each kind of training."""


def load_recipe(cls: type[T], kind: Kind, recipe: str, overrides: Iterable[str] = ()) -> T:
    """Read a recipe and make its settings.

    A recipe may hold tables ``[sizes.NAME...]``: those of the size asked for, by a top-level
    ``size = "mini"`` or the override ``size=mini``, are laid over the rest, under the overrides.
    An override of the budget takes the place of the recipe's, whatever its unit.

    Args:
        cls: The dataclass of the settings.
        kind: What is trained; a shipped name means a recipe of this kind.
        recipe: Name of a shipped recipe, or path of a TOML file.
        overrides: Such as ``optim.lr=1e-4``.

    Raises:
        ConfigError: No such recipe, size or setting; the nearest name is suggested.
    """
    values = read_toml(find_recipe(kind, recipe))
    sizes = values.pop("sizes", {})
    overrides = list(overrides)
    chosen = with_overrides(values, overrides).get("size")
    if chosen is not None and sizes:
        if chosen not in sizes:
            raise ConfigError(unknown_name(str(chosen), str(chosen), sizes, "size"))
        values = _laid_over(values, sizes[chosen])
    for override in overrides:
        _make_room(values, override.partition("=")[0].strip().split("."))
    return from_mapping(cls, with_overrides(values, overrides))


def find_recipe(kind: Kind, recipe: str) -> Path:
    """Find a recipe's file; what ends in ``.toml`` is a path, anything else a shipped name."""
    if recipe.endswith(".toml"):
        return Path(recipe)
    names = shipped_recipes(kind)
    if recipe not in names:
        raise ConfigError(unknown_name(recipe, recipe, names, "recipe"))
    return SHIPPED / kind / f"{recipe}.toml"


def shipped_recipes(kind: Kind) -> list[str]:
    """List the names of the recipes that come with the package."""
    return sorted(path.stem for path in (SHIPPED / kind).glob("*.toml"))


def _make_room(values: dict[str, Any], path: list[str]) -> None:
    """Empty the budget that an override sets: it never has two units at once."""
    *tables, table, _ = ["", *path] if len(path) < 2 else path
    for name in tables:
        values = values.get(name, {})
    if table == "budget" and isinstance(values, dict):
        values["budget"] = {}


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _laid_over(merged[name], value) if both_tables else value
    return merged
