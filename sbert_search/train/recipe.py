"""Read recipes, TOML files of settings with overrides, and list all settings of a recipe."""

from __future__ import annotations

import dataclasses
import itertools
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from sbert_search.config import (
    UnknownSettingError,
    from_mapping,
    read_toml,
    to_mapping,
    unknown_name,
    with_overrides,
)
from sbert_search.declared import Option, declared
from sbert_search.errors import ConfigError
from sbert_search.wings import folders

T = TypeVar("T")

Kind = Literal["pretrain", "bi-encoder", "cross-encoder", "classify", "tag", "qa"]

SHIPPED = Path(__file__).parent / "recipes"
"""Folder of the shipped recipes, with a subfolder for each kind of training; a wing has its own."""


def load_recipe(cls: type[T], kind: Kind, recipe: str, overrides: Iterable[str] = ()) -> T:
    """Read a recipe file and return its settings as a dataclass.

    A recipe may hold tables ``[sizes.NAME...]``. The tables of the selected size (a top-level
    ``size = "mini"`` or the override ``size=mini``) replace values of the recipe; overrides replace
    both. An override such as ``budget.epochs=1`` replaces the whole budget, since the recipe may
    give it in another unit, such as tokens.

    Args:
        cls: The dataclass of the settings.
        kind: Kind of training, which decides the folder of shipped recipes.
        recipe: Name of a shipped recipe, or path of a TOML file.
        overrides: Settings such as ``optim.lr=1e-4``.

    Raises:
        ConfigError: There is no such recipe, size or setting; the message suggests the nearest.

    Example:
        >>> changes = ["data.train=nli.jsonl", "budget.epochs=2"]
        >>> load_recipe(BiEncoderRecipe, "bi-encoder", "nli", changes).budget.epochs
        2.0
    """
    return from_mapping(cls, read_recipe(kind, recipe, overrides))


NAMED = {
    "model": "model",
    "data": "data.train",
    "dev": "data.dev",
    "epochs": "budget.epochs",
    "batch_size": "batching.size",
    "lr": "optim.lr",
}
"""Settings that most recipes have, by the names of their options and keywords."""


def named_settings(values: Mapping[str, object]) -> list[str]:
    """Return the overrides of settings that are given by the names of `NAMED`; None: not given."""
    plain = {n: str(v) if isinstance(v, Path) else v for n, v in values.items() if v is not None}
    return [f"{NAMED[n]}={json.dumps(value, ensure_ascii=False)}" for n, value in plain.items()]


def read_recipe(kind: Kind, recipe: str, overrides: Iterable[str] = ()) -> dict[str, object]:
    """Read the values of a recipe as `load_recipe` does, but do not check the settings."""
    values = read_toml(find_recipe(kind, recipe))
    sizes = _table(values.pop("sizes", {}), "sizes")
    overrides = list(overrides)
    chosen = with_overrides(values, overrides).get("size")
    if chosen is not None and sizes:
        if not isinstance(chosen, str) or chosen not in sizes:
            raise ConfigError(unknown_name(str(chosen), str(chosen), sizes, "size"))
        values = _merged(values, _table(sizes[chosen], f"sizes.{chosen}"))
    for override in overrides:
        _clear_budget(values, override.partition("=")[0].strip().split("."))
    return with_overrides(values, overrides)


def describe_recipe(kind: Kind, recipe: str) -> str:
    """Return the comment at the start of a recipe's file; its first sentence is a summary."""
    path = find_recipe(kind, recipe)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return "\n".join(line.lstrip("#").removeprefix(" ") for line in comment)


def find_recipe(kind: Kind, recipe: str) -> Path:
    """Find a recipe's file: a path if the name ends in ``.toml``, otherwise a shipped recipe."""
    if recipe.endswith(".toml"):
        return Path(recipe)
    names = _shipped(kind)
    if recipe not in names:
        absent = f"There is no file {recipe}. " if Path(recipe).suffix else ""
        raise ConfigError(f"{absent}{unknown_name(recipe, recipe, names, 'recipe')}")
    return names[recipe]


def shipped_recipes(kind: Kind) -> list[str]:
    """List the names of the shipped recipes of a kind."""
    return sorted(_shipped(kind))


def _shipped(kind: Kind) -> dict[str, Path]:
    homes = [SHIPPED, *(folder / "recipes" for folder in folders())]
    return {path.stem: path for home in homes for path in (home / kind).glob("*.toml")}


def _table(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {value!r}; it must be a table of settings.")
    return value


def _clear_budget(values: dict[str, object], path: list[str]) -> None:
    """Empty a budget table that an override sets, so that the unit in the recipe does not stay."""
    *tables, table, _ = ["", *path] if len(path) < 2 else path
    place: object = values
    for name in tables:
        place = place.get(name) if isinstance(place, dict) else None
    if table == "budget" and isinstance(place, dict):
        place["budget"] = {}


def _merged(base: Mapping[str, object], overlay: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for name, value in overlay.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[name] = _merged(old, value)
        else:
            merged[name] = value
    return merged


Origin = typing.Literal["recipe", "default", "required"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a recipe."""

    name: str  # dotted, such as optim.lr
    value: object  # as in a TOML file; None: not set
    origin: Origin
    meaning: str  # from the source of its dataclass; "": it has none, or is not installed
    choices: tuple[str, ...] = ()  # values of its ``Literal`` types, and "a list" if it allows one


def list_settings(cls: type, values: Mapping[str, object], path: str = "") -> Iterator[Setting]:
    """List the settings of a dataclass: first those of its own, then those of nested dataclasses.

    ``values`` are those that the recipe sets, from its table ``path``, such as ``optim.``.
    """
    options = declared(cls)
    for name in values:
        if name not in options:
            raise UnknownSettingError(unknown_name(f"{path}{name}", name, options, "setting"))
    tables = []
    for name, option in options.items():
        default, origin = _plain(option.default), _origin(option, values)
        value = values.get(name, None if origin == "required" else default)
        table = _dataclass_in(option.kind)
        if table and (isinstance(value, Mapping) or origin == "required"):
            tables.append((name, table, default if origin == "default" else {}))
            continue
        meaning = option.description.replace("``", "")
        yield Setting(f"{path}{name}", value, origin, meaning, _choices(option.kind))
    for name, table, defaults in tables:
        for setting in list_settings(table, _table(values.get(name, {}), name), f"{path}{name}."):
            own = setting.name.removeprefix(f"{path}{name}.")
            if isinstance(defaults, Mapping) and own in defaults:
                setting = dataclasses.replace(setting, value=defaults[own], origin="default")
            yield setting


def _origin(option: Option, values: Mapping[str, object]) -> Origin:
    if option.name in values:
        return "recipe"
    return "required" if option.default is dataclasses.MISSING else "default"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    return list(value) if isinstance(value, tuple) else value


def _kinds(hint: object) -> tuple[object, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _dataclass_in(hint: object) -> type | None:
    """Return a type that is a dataclass, or the first dataclass in a union; None: there is none."""
    found = (k for k in _kinds(hint) if isinstance(k, type) and dataclasses.is_dataclass(k))
    return next(found, None)


def _choices(hint: object) -> tuple[str, ...]:
    kinds = _kinds(hint)
    literals = [kind for kind in kinds if typing.get_origin(kind) is Literal]
    named = tuple(str(value) for kind in literals for value in typing.get_args(kind))
    has_list = any(typing.get_origin(kind) is tuple for kind in kinds)
    return (*named, "a list") if named and has_list else named
