"""An index with predicted columns accepts a row of plain text."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search import Index
from tests.models.tiny import tiny_classifier
from tests.serve.conftest import token_file
from tests.serve.test_writing import (
    MODEL,
    ROWS,
    Way,
    assert_rows_and_files_are_accepted,
    assert_rows_of_requests_are_accepted,
    make_all,
)

__all__ = ["token_file"]  # a fixture


def _predicted(folder: Path, out: Path) -> None:
    tiny_classifier(folder / "tokens").save(folder / "classifier")
    Index.build(ROWS, out=out, model=MODEL, classify={"kind": str(folder / "classifier")})


WAYS: dict[str, Way] = {"predicted": _predicted}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_all(WAYS, tmp_path_factory)


@pytest.mark.parametrize("way", WAYS)
def test_rows_and_files_of_plain_texts_are_accepted(
    way: str, made: dict[str, Path], tmp_path: Path
) -> None:
    assert_rows_and_files_are_accepted(made[way], tmp_path)


@pytest.mark.thorough
def test_rows_of_requests_are_accepted(made: dict[str, Path], token_file: Path) -> None:
    assert_rows_of_requests_are_accepted(made, token_file)
