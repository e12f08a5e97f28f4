"""Floors of pyproject.toml as constraints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.floors import floors


def test_floors_are_read_as_constraints(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    text = """
[project]
dependencies = ["numpy>=2.0", "PyStemmer>=2.2.0.3", "sentence-transformers>=5.4,<7"]
[project.optional-dependencies]
cpu = ["onnx>=1.17"]
eval = []
train = []
test = ["pytest>=8"]
"""
    project.write_text(text)
    assert [*floors(project)] == [
        "numpy==2.0",
        "PyStemmer==2.2.0.3",
        "sentence-transformers==5.4",
        "onnx==1.17",
    ]
    project.write_text(text.replace(">=2.0", ""))
    with pytest.raises(ValueError, match="'numpy' has no floor"):
        list(floors(project))


def test_every_requirement_has_a_floor() -> None:
    assert len([*floors()]) > 15


def test_floors_of_frameworks_are_those_of_their_extras() -> None:
    assert [line.partition("==")[0] for line in floors(frameworks=True)] == [
        "langchain-core",
        "haystack-ai",
        "llama-index-core",
        "mteb",
    ]
