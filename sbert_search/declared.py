"""What a settings dataclass declares of each option, for the command line, HTTP and checks.

A field has the type and the default. Its entry in the section Attributes of the docstring describes
it, or the comment beside it; the first sentence stands alone, since it is the help of the command
line. `Bounds` in `typing.Annotated` limits a number or names the value.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
import re
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Literal

from sbert_search.config import is_integer, unknown_name
from sbert_search.errors import ConfigError, SbertSearchError

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
    above: float | None = None  # a limit that is itself out of the range
    below: float | None = None  # the same; infinity: the number must be finite

    @property
    def rule(self) -> str:
        """Which numbers are in the range, such as "at least 1"."""
        if self.low is not None and self.high is not None:
            return f"from {self.low:,} to {self.high:,}"
        named = ("at least", self.low), ("above", self.above), ("at most", self.high)
        limits = [(name, n) for name, n in (*named, ("below", self.below)) if n is not None]
        rule = " and ".join(f"{name} {n:,}" for name, n in limits if math.isfinite(n))
        return ", and ".join(filter(None, ["finite", rule])) if self.below == math.inf else rule

    def __contains__(self, number: float) -> bool:
        return (
            number == number  # not NaN
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """What a field declares."""

    owner: type
    field: dataclasses.Field[object]
    kind: object  # the type without None, such as int or Sequence[Boost]
    may_be_none: bool
    bounds: Bounds

    @property
    def name(self) -> str:
        """The name of the field."""
        return self.field.name

    @property
    def default(self) -> object:
        """The default; `dataclasses.MISSING` if there is none."""
        made = self.field.default_factory
        return self.field.default if made is dataclasses.MISSING else made()

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a `Literal`, of which the option is one; else empty."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    @property
    def description(self) -> str:
        """What the docstring or a comment says of the field; "": nothing."""
        return described(self.owner).get(self.name, "")

    @property
    def help(self) -> str:
        """The first sentence of the description, in plain text."""
        first = re.match(r".*?[.](?= |$)", self.description)
        return re.sub(r"``|`", "", first[0] if first else self.description)


@functools.cache
def described(cls: type) -> Mapping[str, str]:
    """Return what docstrings and comments say of each field of a class, also of inherited ones."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is cls or dataclasses.is_dataclass(base):
            entries = _ATTRIBUTE.finditer(base.__doc__ or "")
            in_docstring = {entry["name"]: " ".join(entry["text"].split()) for entry in entries}
            known = found.keys() | in_docstring.keys()
            if (
                dataclasses.is_dataclass(base)
                and vars(base).get("__annotations__", {}).keys() - known
            ):
                found |= _comments(base)
            found |= in_docstring
    return found


def _comments(cls: type) -> dict[str, str]:
    """Return the comments after or above the fields of a class; none if it has no source file."""
    import ast  # docstrings describe the options that every command line makes
    import inspect
    import textwrap

    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except OSError:
        return {}
    lines, found = source.splitlines(), {}
    for node in typing.cast(ast.ClassDef, ast.parse(source).body[0]).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            behind = lines[(node.end_lineno or 1) - 1].encode()[node.end_col_offset or 0 :].decode()
            above = itertools.takewhile(_is_comment, reversed(lines[: node.lineno - 1]))
            comment = [behind] if "#" in behind else reversed(list(above))
            found[node.target.id] = " ".join(line.strip(" #") for line in comment)
    return found


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


@functools.cache
def declared(cls: Hashable) -> Mapping[str, Option]:
    """Return what each field of a settings dataclass declares, by its name."""
    assert isinstance(cls, type)
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: _option(cls, f, hints[f.name]) for f in dataclasses.fields(cls) if f.init}


def check(
    settings: DataclassInstance, error: type[SbertSearchError] = ConfigError, table: str = ""
) -> None:
    """Check choices, numbers, texts and flags of a settings dataclass; other types are not checked.

    ``table`` is the table of a recipe that has the settings, such as ``optim.``, for messages.

    Raises:
        SbertSearchError: A value has the wrong type or is out of bounds; it is of the given class.
    """
    for option in declared(type(settings)).values():
        value = getattr(settings, option.name)
        if value is None and option.may_be_none:
            continue
        if problem := _problem(option, value, f"{table}{option.name}"):
            raise error(problem)


def _option(owner: type, field: dataclasses.Field[object], hint: object) -> Option:
    bounds, may_be_none = Bounds(), False
    if typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
        bounds = next((note for note in notes if isinstance(note, Bounds)), bounds)
    kinds = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and types.NoneType in kinds:
        kept = (kind for kind in kinds if kind is not types.NoneType)
        hint = functools.reduce(operator.or_, kept)
        may_be_none = True
    return Option(owner, field, hint, may_be_none, bounds)


def _problem(option: Option, value: object, name: str) -> str:
    """Return what is wrong with a value; "": nothing."""
    if option.choices:
        if isinstance(value, str) and value in option.choices:
            return ""
        kind = name if "." in name else name.replace("_", " ")
        return unknown_name(value, value, option.choices, kind)
    if option.kind in _NAMES and not _has_kind(option.kind, value):
        return f"{name} is {value!r:.100}; pass {_NAMES[option.kind]}."
    if option.kind not in (int, float):
        return ""
    number = typing.cast(float, value)
    if number in option.bounds:
        return ""
    rule = option.bounds.rule
    return f"{name} is {number:,}; it must be {rule}." if rule else f"{name} is NaN; pass a number."


_COLUMNS: object = str | Sequence[str]
_NAMES = {int: "an integer", float: "a number", str: "a text", _COLUMNS: "names of columns"}
_NAMES[bool] = "True or False"


def _has_kind(kind: object, value: object) -> bool:
    if type(value) is kind:
        return True
    if kind == _COLUMNS:
        names = value if isinstance(value, list | tuple) else [value]
        return all(isinstance(name, str) for name in names)
    if kind is int:
        return is_integer(value)  # also of numpy
    return kind is float and isinstance(value, Real) and not isinstance(value, bool)
