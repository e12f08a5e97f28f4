"""What config.json cannot hold travels beside it, and damage is named."""

from pathlib import Path

import pytest
import torch

from sbert_search.errors import ModelError, WeightsError
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
    "text",
    ["", "[]", "{", '{"temperature": 0}', '{"temprature": 1}', '{"threshold": 2}', '{"crf": "x"}'],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / SETTINGS).write_text(text)
    with pytest.raises(ModelError, match=r"sbert_search\.json"):
        read_side_file(tmp_path)


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
