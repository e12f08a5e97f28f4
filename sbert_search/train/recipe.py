"""Read recipes, TOML files of settings with overrides, and list all settings of a recipe."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
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
    """
    return from_mapping(cls, read_recipe(kind, recipe, overrides))


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
        raise ConfigError(unknown_name(recipe, recipe, names, "recipe"))
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
    hints, meanings = typing.get_type_hints(cls), _meanings(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for name in values:
        if name not in fields:
            raise UnknownSettingError(unknown_name(f"{path}{name}", name, fields, "setting"))
    tables = []
    for name, field in fields.items():
        value, origin = _value(field, values)
        table = _dataclass_in(hints[name])
        if table and (isinstance(value, Mapping) or origin == "required"):
            tables.append((name, table, origin))
            continue
        choices = _choices(hints[name])
        yield Setting(f"{path}{name}", value, origin, meanings.get(name, ""), choices)
    for name, table, origin in tables:
        default = _value(fields[name], {})[0]
        given = values.get(name)
        inner = given if isinstance(given, Mapping) else {}
        for setting in list_settings(table, inner, f"{path}{name}."):
            own = setting.name.removeprefix(f"{path}{name}.")
            if origin == "default" and isinstance(default, Mapping) and own in default:
                setting = dataclasses.replace(setting, value=default[own], origin="default")
            yield setting


def _value(field: dataclasses.Field[object], values: Mapping[str, object]) -> tuple[object, Origin]:
    if field.name in values:
        return values[field.name], "recipe"
    if field.default is not dataclasses.MISSING:
        return _plain(field.default), "default"
    if field.default_factory is not dataclasses.MISSING:
        return _plain(field.default_factory()), "default"
    return None, "required"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    return list(value) if isinstance(value, tuple) else value


def _dataclass_in(hint: object) -> type | None:
    """Return a type that is a dataclass, or the first dataclass in a union; None: there is none."""
    kinds = typing.get_args(hint) if _is_union(hint) else (hint,)
    return next((k for k in kinds if isinstance(k, type) and dataclasses.is_dataclass(k)), None)


def _choices(hint: object) -> tuple[str, ...]:
    kinds = typing.get_args(hint) if _is_union(hint) else (hint,)
    origins = [typing.get_origin(kind) for kind in kinds]
    named = tuple(
        str(value)
        for kind, origin in zip(kinds, origins, strict=True)
        if origin is typing.Literal
        for value in typing.get_args(kind)
    )
    return (*named, "a list") if named and tuple in origins else named


def _is_union(hint: object) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


@functools.cache
def _meanings(cls: type) -> dict[str, str]:
    """Read what each setting means from the comments and the docstrings of its dataclass."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _comments(base) | _attributes(inspect.getdoc(base) or "")
    return found


def _comments(cls: type) -> dict[str, str]:
    """Return the comments after the fields of a class; none if its source is not installed."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except OSError:
        return {}
    lines = source.splitlines()
    body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            behind = lines[(node.end_lineno or 1) - 1].encode()[node.end_col_offset or 0 :].decode()
            if "#" in behind:
                found[node.target.id] = behind.partition("#")[2].strip()
    return found


def _attributes(docstring: str) -> dict[str, str]:
    """Return the texts below "Attributes:" in a docstring, without double backticks."""
    section = re.search(r"^Attributes:\n((?: +.*\n?|\n)+)", docstring, re.MULTILINE)
    if not section:
        return {}
    entries = re.split(r"^    (?=\w)", section[1], flags=re.MULTILINE)[1:]
    pairs = (entry.partition(":") for entry in entries)
    return {name: " ".join(text.replace("``", "").split()) for name, _, text in pairs}
