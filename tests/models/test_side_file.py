"""What config.json cannot hold travels beside it, and damage is named."""

from pathlib import Path

import pytest
import torch

from sbert_search.errors import ConfigError, ModelError, WeightsError
from sbert_search.models.side_file import (
    SETTINGS,
    TENSORS,
    SideFile,
    read_side_file,
    read_side_tensors,
    write_side_file,
    write_side_tensors,
)


def test_settings_travel_and_defaults_need_no_file(tmp_path: Path) -> None:
    write_side_file(tmp_path, SideFile())
    assert not (tmp_path / SETTINGS).exists()
    assert read_side_file(tmp_path) == SideFile()
    side = SideFile(temperature=1.5, scheme="bilou", crf=True)
    write_side_file(tmp_path, side)
    assert read_side_file(tmp_path) == side
    write_side_file(tmp_path, SideFile())
    assert read_side_file(tmp_path) == SideFile()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"temperature": 0}', "temperature is 0.0; it must be finite and above 0."),
        ('{"temprature": 1}', "Unknown setting 'temprature'; did you mean 'temperature'?"),
        ('{"threshold": 2}', "threshold is 2.0; it must be from 0 to 1."),
        ('{"overlap": -1}', "overlap is -1; it must be at least 0."),
        ('{"max_answer": 0}', "max_answer is 0; it must be at least 1."),
        ('{"crf": "x"}', "crf is 'x'; it must be of type bool."),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / SETTINGS).write_text(text)
    with pytest.raises(ModelError) as caught:
        read_side_file(tmp_path)
    path = tmp_path / SETTINGS
    assert str(caught.value) == f"{path} cannot be used: {problem} Save the model again."


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "cannot be read as JSON"), ("[" * 100_000, "cannot be read"), ("[]", "no JSON object")],
)
def test_a_file_that_is_no_object_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / SETTINGS
    path.write_text(text)
    with pytest.raises(ModelError, match=rf"{path} .*{problem}"):
        read_side_file(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["temperature", "threshold", "no_answer_threshold"])
def test_settings_are_finite(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is {value}"):
        SideFile(**{name: value})  # type: ignore[arg-type]


def test_wrong_tensors_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="missing or damaged"):
        read_side_tensors(tmp_path, {"a": (2,)})
    write_side_tensors(tmp_path, {"a": torch.ones(2), "b": torch.full((1,), torch.nan)})
    assert read_side_tensors(tmp_path, {"a": (2,)})["a"].tolist() == [1, 1]
    for names in ({"a": (3,)}, {"b": (1,)}, {"c": (1,)}):
        with pytest.raises(WeightsError, match="must be finite numbers of shape"):
            read_side_tensors(tmp_path, names)
    (tmp_path / TENSORS).write_bytes(b"{")
    with pytest.raises(WeightsError, match="missing or damaged"):
        read_side_tensors(tmp_path, {"a": (2,)})
