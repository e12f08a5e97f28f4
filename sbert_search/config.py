"""Convert settings dataclasses to and from TOML and JSON, and apply ``name=value`` overrides."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Hashable, Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from sbert_search.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

MAX_TOML_BYTES = 16 << 20
MAX_SEED = 2**63 - 1  # the largest integer that TOML can hold; training recipes are TOML files


class UnknownSettingError(ConfigError):
    """A setting has an unknown name, for example in a file of a newer version of this package."""


class MissingSettingError(ConfigError):
    """A setting without a default is missing."""


def from_mapping(
    cls: type[T], values: Mapping[str, object], *, where: str = "", others: bool = False
) -> T:
    """Make a settings dataclass from nested plain values, checking names and types.

    A field that is itself a dataclass is made from a nested table. ``where`` is the dotted path of
    the table, such as ``optim.``, for messages. ``others`` ignores unknown names, as in files of
    other libraries. Callers catch `UnknownSettingError` and `MissingSettingError`.
    """
    fields = _fields(typing.cast(Hashable, cls))
    for name in values:
        if name not in fields and not others:
            raise UnknownSettingError(unknown_name(f"{where}{name}", name, fields, "setting"))
    made: dict[str, object] = {}
    for name, (hint, is_needed) in fields.items():
        if name in values:
            value = values[name]
            # A value of exactly the declared type skips _coerce: opening an index reads thousands
            # of values.
            if type(value) is not hint or not _is_storable(value):
                value = _coerce(hint, value, f"{where}{name}")
            made[name] = value
        elif is_needed:
            raise MissingSettingError(f"The setting {where}{name} is missing; add it.")
    return cls(**made)


def with_fields(settings: T, values: Mapping[str, object]) -> T:
    """Return a settings dataclass with some fields replaced and checked."""
    names = _fields(typing.cast(Hashable, type(settings)))
    current = {name: getattr(settings, name) for name in names}
    return from_mapping(type(settings), current | dict(values))


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer, of Python or of numpy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def names_of(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of a list, or of a text that separates them by commas."""
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    return tuple(filter(None, names))


def require_known(keywords: Mapping[str, object], known: type) -> None:
    """Raise a `TypeError` if a keyword is none of a `TypedDict`."""
    for name in keywords.keys() - known.__annotations__.keys():
        raise TypeError(unknown_name(name, name, known.__annotations__, "keyword"))


def require_types(settings: DataclassInstance) -> None:
    """Check the fields of a settings dataclass against their annotations, like `from_mapping`."""
    for name, (hint, _) in _fields(typing.cast(Hashable, type(settings))).items():
        _coerce(hint, getattr(settings, name), name)


def to_mapping(settings: DataclassInstance) -> dict[str, object]:
    """Turn a settings dataclass into nested plain values that JSON can hold."""
    return {f.name: _plain(getattr(settings, f.name)) for f in dataclasses.fields(settings)}


def with_overrides(values: Mapping[str, object], overrides: Iterable[str]) -> dict[str, object]:
    """Apply overrides such as ``optim.lr=2e-5``; what is not a TOML value is a plain string."""
    merged: dict[str, Any] = json.loads(json.dumps(values, default=str))
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ConfigError(
                f"{override!r} is not an override; write name=value, such as optim.lr=2e-5."
            )
        *parents, last = path.strip().split(".")
        table = merged
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{override!r}: {parent} is a value, not a table of settings.")
        table[last] = _toml_value(text.strip())
    return merged


def read_toml(path: Path) -> dict[str, object]:
    """Read a TOML file; the ConfigError names the file and, if its syntax is wrong, the line."""
    import tomllib  # most commands read no TOML

    try:
        with path.open("rb") as file:
            data = file.read(MAX_TOML_BYTES + 1)
        if len(data) > MAX_TOML_BYTES:
            raise ConfigError(f"{path} has more than {MAX_TOML_BYTES >> 20} MiB; name a TOML file.")
        return tomllib.loads(data.decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    except ValueError as error:  # includes integers of thousands of digits
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply; write it flatter.") from None


def to_toml(values: Mapping[str, object]) -> str:
    """Return nested plain values as TOML text, without the None values, which TOML cannot hold."""
    return "\n".join(_toml_lines(values, "")) + "\n"


def unknown_name(shown: object, name: object, known: Iterable[str], kind: str) -> str:
    """Return the message for an unknown name, with the nearest known name or all known names."""
    import difflib  # only a misspelt name needs it

    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."
    hint = hint if known else f"there is no {kind}."
    return f"Unknown {kind} {shown!r}; {hint}"


@functools.cache
def _fields(cls: Hashable) -> dict[str, tuple[Any, bool]]:
    """Return the type of each init field of a dataclass, and whether the field is required."""
    hints, unset = typing.get_type_hints(cls), dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is unset and field.default_factory is unset)
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.init
    }


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _toml_value(text: str) -> object:
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _toml_lines(values: Mapping[str, object], path: str) -> list[str]:
    tables = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    plain = {n: v for n, v in values.items() if n not in tables and v is not None}
    lines = [f"{_toml_key(name)} = {_toml_text(value)}" for name, value in plain.items()]
    for name, table in tables.items():
        inner = f"{path}{_toml_key(name)}"
        lines += ["", f"[{inner}]", *_toml_lines(table, f"{inner}.")]
    return lines


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_string(name)


def _toml_text(value: object) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{_toml_key(n)} = {_toml_text(v)}" for n, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_text, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # repr writes inf and nan as TOML does; json writes Infinity and NaN
    return _toml_string(value)


def _toml_string(value: object) -> str:
    # JSON allows the character DEL in strings, TOML does not.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _coerce(hint: Any, value: object, where: str) -> object:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if value == "" and (hint is Path or (Path in args and str not in args)):  # the current folder
        raise ConfigError(f"{where} is empty; name a file or folder, or '.' for this folder.")
    if origin in (typing.Union, types.UnionType):
        return _coerce_union(args, value, where)
    if origin is typing.Literal:
        if value in args:
            return value
        raise ConfigError(unknown_name(f"{where} = {value}", str(value), map(str, args), "value"))
    if isinstance(value, Mapping) and dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_mapping(hint, value, where=f"{where}.")
    if isinstance(value, Mapping) and origin in (dict, Mapping):
        return {key: _coerce(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)) and origin in (list, tuple):
        if origin is tuple and Ellipsis not in args and len(value) != len(args):
            raise ConfigError(f"{where} has {len(value)} values; it must have {len(args)}.")
        items = [_coerce(args[0] if args else Any, item, where) for item in value]
        return tuple(items) if origin is tuple else items
    if origin in (list, tuple):
        raise ConfigError(f"{where} is {value!r}; it must be {_list_text(args, value, where)}.")
    return _coerce_scalar(hint, value, where)


def _is_storable(value: object) -> bool:
    """Whether a setting may hold this value: no NUL character, no infinity, no NaN."""
    if isinstance(value, str):
        return "\0" not in value
    return not isinstance(value, float) or math.isfinite(value)


def _coerce_scalar(hint: Any, value: object, where: str) -> object:
    if hint in (Any, object):
        return value
    if isinstance(value, str) and not _is_storable(value):
        raise ConfigError(f"{where} is {value!r}; it must not contain a NUL character.")
    is_bool = isinstance(value, bool)
    if hint is float and isinstance(value, (int, float)) and not is_bool:
        try:
            if math.isfinite(real := float(value)):
                return real
        except OverflowError:
            pass
        raise ConfigError(f"{where} must be a finite number within 64 bits.")
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and is_bool):
        return value
    expected = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{where} is {value!r}; it must be of type {expected}.")


def _coerce_union(args: tuple[object, ...], value: object, where: str) -> object:
    if value is None and type(None) in args:
        return None
    choices = [arg for arg in args if arg is not type(None)]
    for choice in choices:
        try:
            return _coerce(choice, value, where)
        except ConfigError:
            if len(choices) == 1:
                raise
    names = " or ".join(_type_text(choice, value, where) for choice in choices)
    raise ConfigError(f"{where} is {value!r}; it must be of type {names}.")


def _type_text(hint: object, value: object, where: str) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(map(repr, args))
    if origin in (list, tuple):
        return _list_text(args, value, where)
    return getattr(hint, "__name__", str(hint))


def _list_text(args: tuple[object, ...], value: object, where: str) -> str:
    """Show how to write a value, such as ``1,2``, as a list: ``a list, such as x=[1, 2]``."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]
    items = [str(part) if str in args else _toml_value(str(part)) for part in parts]
    return f"a list, such as {where}={_toml_text(items)} (on a command line in single quotes)"
