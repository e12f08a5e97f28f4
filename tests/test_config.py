"""Settings: types are checked, names are suggested, overrides reach nested tables."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from sbert_search.config import (
    from_mapping,
    read_toml,
    to_mapping,
    to_toml,
    unknown_name,
    with_overrides,
)
from sbert_search.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Optim:
    lr: float = 1e-3
    kind: Literal["adamw", "sgd"] = "adamw"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    steps: int
    optim: Optim = field(default_factory=Optim)
    names: tuple[str, ...] = ()
    out: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    weights: Literal["none"] | tuple[float, ...] = "none"


def test_mapping_round_trip() -> None:
    settings = Settings(steps=3, optim=Optim(lr=0.5), names=("a", "b"), out=Path("x"))
    assert from_mapping(Settings, to_mapping(settings)) == settings


def test_whole_number_is_a_float_but_true_is_no_int() -> None:
    assert from_mapping(Settings, {"steps": 1, "optim": {"lr": 1}}).optim.lr == 1.0
    with pytest.raises(ConfigError, match="steps is True; it must be of type int"):
        from_mapping(Settings, {"steps": True})


def test_a_tuple_of_fixed_length_has_this_length() -> None:
    @dataclass(frozen=True)
    class Range:
        ends: tuple[float, float] | None = None

    assert from_mapping(Range, {"ends": [0, 5]}).ends == (0.0, 5.0)
    for ends in ([5], [0, 5, 10], []):
        with pytest.raises(ConfigError, match="ends"):
            from_mapping(Range, {"ends": ends})


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(ConfigError, match="out is empty; name a file"):
        from_mapping(Settings, {"steps": 1, "out": ""})
    assert from_mapping(Settings, {"steps": 1, "out": "."}).out == Path()


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Unknown setting 'optim.lrr'; did you mean 'lr'\?"):
        from_mapping(Settings, {"steps": 1, "optim": {"lrr": 1}})


def test_missing_and_wrong_choice_are_named() -> None:
    with pytest.raises(ConfigError, match="setting steps is missing"):
        from_mapping(Settings, {})
    with pytest.raises(ConfigError, match=r"optim.kind = adam'; did you mean 'adamw'"):
        from_mapping(Settings, {"steps": 1, "optim": {"kind": "adam"}})


def test_a_text_in_place_of_a_list_is_shown_as_a_list() -> None:
    with pytest.raises(ConfigError, match=r"""names is 'a,b'; .* such as names=\["a", "b"\] \("""):
        from_mapping(Settings, {"steps": 1, "names": "a,b"})
    with pytest.raises(ConfigError, match=r"'none' or a list, such as weights=\[0\.5, 2\] \(on a"):
        from_mapping(Weights, {"weights": "0.5,2"})


def test_overrides_read_toml_values_and_fall_back_to_text() -> None:
    merged = with_overrides({"steps": 1, "optim": {"lr": 1.0}}, ["optim.lr=2e-5", "out=a/b"])
    assert merged == {"steps": 1, "optim": {"lr": 2e-5}, "out": "a/b"}
    with pytest.raises(ConfigError, match="steps is a value, not a table"):
        with_overrides({"steps": 1}, ["steps.x=1"])
    with pytest.raises(ConfigError, match="not an override"):
        with_overrides({}, ["steps"])


def test_toml_holds_every_character_of_a_string() -> None:
    values = {"labels": ["".join(map(chr, range(1, 160)))], "rename": {"a\x7fb": "\x7f"}}
    assert tomllib.loads(to_toml(values)) == values


def test_broken_toml_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("a = 1\nb = = 2\n")
    with pytest.raises(ConfigError, match=r"recipe.toml is not valid TOML: .*line 2"):
        read_toml(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = " + "[" * 100_000, "is nested too deeply"),
        ("x = " + "9" * 5000, "is not valid TOML: Exceeds the limit"),
        ("#" * ((16 << 20) + 1), "has more than 16 MiB"),
    ],
)
def test_toml_that_python_cannot_hold_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=f"recipe.toml {message}"):
        read_toml(path)
    if len(content) < 1 << 20:
        override = content.replace("x = ", "x=", 1)
        assert with_overrides({}, [override])["x"] == override[2:]


def test_values_that_no_path_or_number_can_have_are_named() -> None:
    with pytest.raises(ConfigError, match=r"out is 'a\\x00b'; it must not contain a NUL character"):
        from_mapping(Settings, {"steps": 1, "out": "a\0b"})
    for number in (10**400, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"optim\.lr must be a finite number"):
            from_mapping(Settings, {"steps": 1, "optim": {"lr": number}})


def test_an_unknown_name_of_another_type_or_among_none_is_named() -> None:
    assert unknown_name(None, None, ["a", "b"], "mode") == "Unknown mode None; known: a, b."
    assert unknown_name("x", "x", [], "column") == "Unknown column 'x'; there is no column."
