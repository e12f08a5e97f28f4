"""An option is declared once, as a field of a settings dataclass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import click
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from sbert_search.cli.options.shared import options_of
from sbert_search.declared import Bounds, check, declared, described
from sbert_search.errors import ConfigError
from sbert_search.index.building.settings import BuildSettings, ReadSettings
from sbert_search.index.settings import IndexSpec, LexicalSettings, TuneSettings
from sbert_search.search.options import Fusion, SearchOptions
from sbert_search.serve.access import ServerLimits
from sbert_search.serve.search_schemas import options_of as fields_of
from sbert_search.text.fields import FieldNames
from sbert_search.text.tokens.wordpiece import VocabularySettings


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


@dataclass(frozen=True, kw_only=True)
class Pot:
    """A pot."""

    litres: Annotated[float, Bounds(above=0, high=2)] = 1.0  # what it holds
    # How long it lasts;
    # more is better.
    years: Annotated[float, Bounds(above=0, below=math.inf)] = 3.0
    lids: Annotated[int, Bounds(0, below=3)] = 1


@dataclass(frozen=True, kw_only=True)
class Kettle(Pot):
    """A pot with a lid.

    Attributes:
        lids: Number of lids.
    """


def test_comments_describe_fields_too_and_subclasses_inherit_them() -> None:
    told = {name: option.description for name, option in declared(Kettle).items()}
    assert told == {
        "litres": "what it holds",
        "years": "How long it lasts; more is better.",
        "lids": "Number of lids.",
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"litres": 0}, "pot.litres is 0; it must be above 0 and at most 2."),
        ({"litres": float("nan")}, "pot.litres is nan; it must be above 0 and at most 2."),
        ({"years": math.inf}, "pot.years is inf; it must be finite, and above 0."),
        ({"lids": 3}, "pot.lids is 3; it must be at least 0 and below 3."),
    ],
)
def test_a_limit_may_be_out_of_its_range(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(Pot(**wrong), table="pot.")
    assert str(caught.value) == message


def test_an_option_may_say_what_holds_without_it() -> None:
    @click.command()
    @options_of(Pot, "litres", unset="as it was", variables=True)
    def pour(**values: object) -> None:
        click.echo(values)

    run = CliRunner().invoke
    assert run(pour, []).output == "{'litres': None}\n"
    assert run(pour, [], env={"SBERT_SEARCH_LITRES": "2"}).output == "{'litres': 2.0}\n"
    assert run(pour, ["--litres", "0"]).exit_code == 2
    assert "what it holds  [default: as it was]  [0<x<=2]" in run(pour, ["--help"]).output


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


@pytest.mark.parametrize(
    "settings",
    [
        *(SearchOptions, Fusion, FieldNames, ReadSettings, BuildSettings),
        *(IndexSpec, LexicalSettings, TuneSettings, ServerLimits),
        VocabularySettings,
    ],
)
def test_the_options_of_a_command_line_are_described_without_parsing_source(
    settings: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command line makes the options of its command; parsing a module takes 10 ms."""
    monkeypatch.setattr("sbert_search.declared._comments", lambda base: 1 / 0)
    described.cache_clear()
    assert described(settings)
    described.cache_clear()


def test_a_default_that_may_not_hold_is_in_the_help_and_no_value() -> None:
    @click.command()
    @options_of(Brew, "sugar", holds=False)
    def brew(sugar: int | None) -> None:
        click.echo(repr(sugar))

    runner = CliRunner()
    assert runner.invoke(brew).output == "None\n"
    assert f"[default: {Brew().sugar}]" in runner.invoke(brew, ["--help"]).output
