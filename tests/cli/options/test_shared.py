"""The shared options: their forms, their variables and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args, get_type_hints

import click
import pytest
from click.testing import CliRunner

from sbert_search.base.device import DTYPES, Precision
from sbert_search.cli.options.shared import (
    HEAD_PRECISIONS,
    PRECISIONS,
    TRAINING_PRECISIONS,
    Finite,
    ListOption,
    device,
    shared_options,
    size,
)
from sbert_search.train.loop.loop import TrainConfig
from tests.cli.lines import commands


def test_no_help_shows_a_range_without_bounds() -> None:
    for name, command in commands():
        shown = command.get_help(click.Context(command, info_name=name))
        assert "=None" not in shown, name
    assert Finite(0, 1)._describe_range() == "0<=x<=1"


@click.command()
@click.option("--names", cls=ListOption, metavar="NAME,...")
def listed(names: str | None) -> None:
    click.echo(repr(names))


def test_the_values_of_a_repeated_list_are_joined() -> None:
    """Click keeps the last of them only, and says nothing."""
    lines = ("", "--names a,b", "--names a --names b,c")
    found = [CliRunner().invoke(listed, line).output for line in lines]
    assert found == ["None\n", "'a,b'\n", "'a,b,c'\n"]
    by_file = CliRunner().invoke(listed, [], default_map={"names": "a,b"})
    assert by_file.output == "'a,b'\n"
    for name, command in commands():
        for option in command.params:
            if str(option.metavar).endswith(("...", "...]")) and isinstance(option, click.Option):
                assert isinstance(option, ListOption), (name, option.name)


@click.command()
@shared_options("device", "on-error", "seed", "allow-inexact", "quiet", "json")
def show(**options: object) -> None:
    click.echo(repr(options))


def shown(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    result = CliRunner().invoke(show, arguments, env=dict(env or {}))
    assert result.exit_code == 0, result.output
    return result.output


def test_first_values_are_the_defaults() -> None:
    assert shown() == (
        "{'device': 'auto', 'on_error': 'stop', 'seed': 0, "
        "'allow_inexact': False, 'as_json': False}\n"
    )


def test_variables_set_options_and_the_command_line_wins() -> None:
    env = {"SBERT_SEARCH_ON_ERROR": "skip", "SBERT_SEARCH_JSON": "1", "SBERT_SEARCH_DATA": "/x"}
    assert "'on_error': 'skip'" in shown(env=env)
    assert "'as_json': True" in shown(env=env)
    assert "'on_error': 'stop'" in shown("--on-error", "stop", env=env)


@pytest.mark.parametrize("text", ["auto", "cpu", "cuda", "cuda:1", "mps", "cuda:0,cuda:12"])
def test_devices(text: str) -> None:
    assert device(text) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "gpu"], "'gpu' is not a device; use auto, cpu, cuda, cuda:N, mps"),
        (["--device", "cuda:0,auto"], "'cuda:0,auto' is not a device;"),
        (["--seed", str(2**63)], f"{2**63} is not in the range 0<=x<={2**63 - 1}"),
        (["--on-error", "ignore"], "'ignore' is not one of 'stop', 'skip'"),
    ],
)
def test_a_wrong_value_names_the_right_ones(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(show, arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("2G", 2 << 30), ("1.5m", 3 << 19), ("64K", 65_536), ("100", 100)]
)
def test_sizes(text: str, n_bytes: int) -> None:
    assert size(text) == n_bytes


@pytest.mark.parametrize(
    "text", ["0", "0G", "-1G", "2X", "", "G", "1e9", "9" * 400, "8388608T", "0.5"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size; write 2G, 512M"):
        size(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400"])
def test_a_number_that_is_not_finite_is_refused(text: str) -> None:
    """NaN passes every range; as --wait it would wait for ever."""
    with pytest.raises(click.BadParameter, match=r"is not finite|is not in the range"):
        Finite(0, 1).convert(text, None, None)
    with pytest.raises(click.BadParameter, match="is not finite"):
        Finite().convert(text, None, None)
    assert Finite().convert("1.5", None, None) == 1.5


def test_every_number_of_every_command_is_finite() -> None:
    for name, command in commands():
        for option in command.params:
            if isinstance(option.type, (click.types.FloatParamType, click.FloatRange)):
                assert isinstance(option.type, Finite), (name, option.name)


def test_the_precisions_are_those_of_the_api() -> None:
    assert get_args(Precision) == PRECISIONS
    assert ("auto", *DTYPES) == HEAD_PRECISIONS
    assert get_args(get_type_hints(TrainConfig)["precision"]) == TRAINING_PRECISIONS


def test_more_draws_than_an_interval_needs_are_refused() -> None:
    command = dict(commands())["eval compare"]
    result = CliRunner().invoke(command, [".", ".", "--draws", "1000001"])
    assert result.exit_code == 2
    assert "1000001 is not in the range 100<=x<=1000000" in result.output
