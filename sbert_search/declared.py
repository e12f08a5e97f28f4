"""What a settings dataclass declares of each option, for the command line, HTTP and checks.

A field has the type and the default. Its entry in the section Attributes of the docstring describes
it; the first sentence stands alone, since it is the help of the command line. `Bounds` in
`typing.Annotated` limits a number or names the value.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import types
import typing
from collections.abc import Hashable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Literal

from sbert_search.config import is_integer, unknown_name
from sbert_search.errors import SbertSearchError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# An entry of the section Attributes; its further lines are indented deeper.
_ATTRIBUTE = re.compile(r"^(?P<indent> +)(?P<name>\w+): (?P<text>.*(?:\n(?P=indent) +.*)*)", re.M)


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a number, and what the command line calls a value."""

    low: float | None = None  # None: no limit
    high: float | None = None
    metavar: str | None = None  # None: the name of the type


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """What a field declares."""

    name: str
    kind: object  # the type without None, such as int or Sequence[Boost]
    may_be_none: bool
    default: object  # `dataclasses.MISSING` if there is none
    bounds: Bounds
    description: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a `Literal`, of which the option is one; else empty."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    @property
    def help(self) -> str:
        """The first sentence of the description, in plain text."""
        first = re.match(r".*?[.](?= |$)", self.description)
        return re.sub(r"``|`", "", first[0] if first else self.description)


def described(cls: type) -> dict[str, str]:
    """Return the entries of the section Attributes in the docstring of a class."""
    entries = _ATTRIBUTE.finditer(cls.__doc__ or "")
    return {entry["name"]: " ".join(entry["text"].split()) for entry in entries}


@functools.cache
def declared(cls: Hashable) -> Mapping[str, Option]:
    """Return what each field of a settings dataclass declares, by its name."""
    assert isinstance(cls, type)
    hints, texts = typing.get_type_hints(cls, include_extras=True), described(cls)
    return {
        field.name: _option(field, hints[field.name], texts.get(field.name, ""))
        for field in dataclasses.fields(cls)
    }


def check(settings: DataclassInstance, error: type[SbertSearchError]) -> None:
    """Check choices, numbers, texts and flags of a settings dataclass; other types are not checked.

    Raises:
        SbertSearchError: A value has the wrong type or is out of bounds; it is of the given class.
    """
    for option in declared(type(settings)).values():
        value = getattr(settings, option.name)
        if value is None and option.may_be_none:
            continue
        if (problem := _problem(option, value)) is not None:
            raise error(problem)


def _option(field: dataclasses.Field[object], hint: object, description: str) -> Option:
    bounds, default, may_be_none = Bounds(), field.default, False
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    if typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
        bounds = next((note for note in notes if isinstance(note, Bounds)), bounds)
    kinds = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and types.NoneType in kinds:
        kept = (kind for kind in kinds if kind is not types.NoneType)
        hint = functools.reduce(operator.or_, kept)
        may_be_none = True
    return Option(field.name, hint, may_be_none, default, bounds, description)


def _problem(option: Option, value: object) -> str | None:
    if option.choices:
        if isinstance(value, str) and value in option.choices:
            return None
        return unknown_name(value, value, option.choices, option.name.replace("_", " "))
    if option.kind in _NAMES and not _has_kind(option.kind, value):
        return f"{option.name} is {value!r:.100}; pass {_NAMES[option.kind]}."
    if option.kind not in (int, float):
        return None
    number = typing.cast(float, value)
    low, high = option.bounds.low, option.bounds.high
    if (low is None or number >= low) and (high is None or number <= high):
        return None if number == number else f"{option.name} is NaN; pass a number."
    if low is None or high is None:
        rule = f"at most {high:,}" if low is None else f"at least {low:,}"
    else:
        rule = f"from {low:,} to {high:,}"
    return f"{option.name} is {value:,}; it must be {rule}."


_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "True or False"}


def _has_kind(kind: object, value: object) -> bool:
    if type(value) is kind:
        return True
    if kind is int:
        return is_integer(value)  # also of numpy
    return kind is float and isinstance(value, Real) and not isinstance(value, bool)
