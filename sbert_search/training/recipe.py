"""Recipes: TOML files of settings, shipped with the package or your own, with overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from sbert_search.config import from_mapping, read_toml, unknown_name, with_overrides
from sbert_search.errors import ConfigError

T = TypeVar("T")

Kind = Literal["pretrain", "bi-encoder", "cross-encoder"]

SHIPPED = Path(__file__).parent / "recipes"
"""Folder of the shipped recipes, with a subfolder for each kind of training."""


def load_recipe(cls: type[T], kind: Kind, recipe: str, overrides: Iterable[str] = ()) -> T:
    """Read a recipe and make its settings.

    A recipe may hold tables ``[sizes.NAME...]``. The tables of the selected size (a top-level
    ``size = "mini"`` or the override ``size=mini``) replace values of the recipe; overrides replace
    both. An override of the budget replaces the whole budget, whatever its unit.

    Args:
        cls: The dataclass of the settings.
        kind: What is trained; shipped recipes are looked up among those of this kind.
        recipe: Name of a shipped recipe, or path of a TOML file.
        overrides: Settings such as ``optim.lr=1e-4``.

    Raises:
        ConfigError: There is no such recipe, size or setting; the message suggests the nearest.
    """
    values = read_toml(find_recipe(kind, recipe))
    sizes = values.pop("sizes", {})
    overrides = list(overrides)
    chosen = with_overrides(values, overrides).get("size")
    if chosen is not None and isinstance(sizes, dict) and sizes:
        if chosen not in sizes:
            raise ConfigError(unknown_name(str(chosen), str(chosen), sizes, "size"))
        values = _merged(values, sizes[chosen])
    for override in overrides:
        _clear_budget(values, override.partition("=")[0].strip().split("."))
    return from_mapping(cls, with_overrides(values, overrides))


def find_recipe(kind: Kind, recipe: str) -> Path:
    """Find a recipe's file: a path if the name ends in ``.toml``, otherwise a shipped recipe."""
    if recipe.endswith(".toml"):
        return Path(recipe)
    names = shipped_recipes(kind)
    if recipe not in names:
        raise ConfigError(unknown_name(recipe, recipe, names, "recipe"))
    return SHIPPED / kind / f"{recipe}.toml"


def shipped_recipes(kind: Kind) -> list[str]:
    """List the names of the shipped recipes of a kind."""
    return sorted(path.stem for path in (SHIPPED / kind).glob("*.toml"))


def _clear_budget(values: dict[str, Any], path: list[str]) -> None:
    """Empty the budget table that an override sets, so that it never has two units at once."""
    *tables, table, _ = ["", *path] if len(path) < 2 else path
    for name in tables:
        values = values.get(name, {})
    if table == "budget" and isinstance(values, dict):
        values["budget"] = {}


def _merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in overlay.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if both_tables else value
    return merged
