"""An option is declared once, as a field of a settings dataclass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import click
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from sbert_search.cli.options.shared import options_of
from sbert_search.declared import Bounds, check, declared
from sbert_search.errors import ConfigError
from sbert_search.search.options import SearchOptions
from sbert_search.serve.search_schemas import options_of as fields_of


@dataclass(frozen=True, kw_only=True)
class Brew:
    """How tea is made.

    Attributes:
        sugar: Lumps at most.
        minutes: Minutes in water of ``degrees``. More is bitter: the second
            sentence is no help.
        leaf: Kind of leaf.
        degrees: Temperature, 40 to 100.
        note: A remark; None: no remark.
        milk: Whether milk is added.
        names: Names of guests.

    Raises:
        ConfigError: minutes: not an entry of a field.
    """

    sugar: Annotated[int, Bounds(high=2)] = 0
    minutes: Annotated[int, Bounds(1)] = 3
    leaf: Literal["green", "black"] = "green"
    degrees: Annotated[float, Bounds(40, 100)] = 80.0
    note: Annotated[str | None, Bounds(metavar="TEXT")] = None
    milk: bool = False
    names: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        check(self, ConfigError)


def test_a_field_and_its_entry_declare_an_option() -> None:
    options = declared(Brew)
    minutes = options["minutes"]
    assert list(options) == ["sugar", "minutes", "leaf", "degrees", "note", "milk", "names"]
    assert (minutes.kind, minutes.default, minutes.bounds.low) == (int, 3, 1)
    assert minutes.help == "Minutes in water of degrees."
    assert minutes.description.endswith("More is bitter: the second sentence is no help.")
    assert (options["note"].kind, options["note"].may_be_none) == (str, True)
    assert (options["leaf"].choices, options["minutes"].choices) == (("green", "black"), ())
    assert options["names"].default == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"minutes": 0}, "minutes is 0; it must be at least 1."),
        ({"sugar": 3}, "sugar is 3; it must be at most 2."),
        ({"minutes": True}, "minutes is True; pass an integer."),
        ({"minutes": 2.0}, r"minutes is 2\.0; pass an integer."),
        ({"minutes": None}, "minutes is None; pass an integer."),
        ({"degrees": 101}, r"degrees is 101; it must be from 40 to 100."),
        ({"degrees": float("nan")}, "degrees is nan; it must be from 40 to 100."),
        ({"degrees": "hot"}, "degrees is 'hot'; pass a number."),
        ({"leaf": "red"}, "Unknown leaf 'red'; known: black, green."),
        ({"leaf": None}, "Unknown leaf None; known: black, green."),
        ({"note": 3}, "note is 3; pass a text."),
        ({"milk": 1}, "milk is 1; pass True or False."),
    ],
)
def test_values_out_of_bounds_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Brew(**wrong)


def test_values_of_numpy_and_none_are_accepted() -> None:
    made = Brew(minutes=np.int64(4), degrees=np.float32(50), note=None)  # type: ignore[arg-type]
    assert (made.minutes, made.degrees) == (4, 50)


def test_a_command_takes_its_options_from_the_fields() -> None:
    @click.command()
    @options_of(Brew, "minutes", "leaf", "degrees", "note", "milk", flags={"leaf": "--tea"})
    def brew(**values: object) -> None:
        click.echo(sorted(values.items()))

    run = CliRunner().invoke
    assert "('leaf', 'black')" in run(brew, ["--tea", "black", "--minutes", "5"]).output
    assert (
        run(brew, []).output
        == str(
            [("degrees", 80.0), ("leaf", "green"), ("milk", False), ("minutes", 3), ("note", None)]
        )
        + "\n"
    )
    for line in (["--minutes", "0"], ["--degrees", "101"], ["--degrees", "nan"], ["--tea", "red"]):
        assert run(brew, line).exit_code == 2
    assert "--note TEXT" in (text := run(brew, ["--help"]).output)
    assert "Minutes in water of degrees.  [default: 3; x>=1]" in " ".join(text.split()).replace(
        ". [", ".  ["
    )


def test_a_request_takes_its_fields_from_the_fields() -> None:
    request = msgspec.defstruct("Request", fields_of(Brew, "minutes", "leaf", "note", note="none"))
    sound = msgspec.json.decode(b'{"minutes": 4}', type=request)
    assert (getattr(sound, "minutes"), getattr(sound, "note")) == (4, "none")  # noqa: B009
    for body in (b'{"minutes": 0}', b'{"minutes": 1000001}', b'{"leaf": "red"}', b'{"note": null}'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(body, type=request)
    [schema] = msgspec.json.schema_components([request])[1].values()
    assert schema["properties"]["minutes"]["description"] == "Minutes in water of degrees."


def test_each_option_of_a_search_has_help() -> None:
    assert all(option.help.endswith(".") for option in declared(SearchOptions).values())
