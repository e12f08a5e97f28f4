"""Every way to import an index gives one that accepts a row of plain text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search import Index, export_index, import_index
from tests.serve.conftest import token_file
from tests.serve.test_writing import (
    MODEL,
    ROWS,
    VECTORS,
    Way,
    assert_rows_and_files_are_accepted,
    assert_rows_of_requests_are_accepted,
    make_all,
)

__all__ = ["token_file"]  # a fixture


def _parquet(folder: Path, out: Path) -> None:
    export_index(Index.build(ROWS, out=folder / "i", model=MODEL).path, "parquet", folder / "x")
    (folder / "x").rename(folder / "x.parquet")
    import_index(folder / "x.parquet", out, model=MODEL)


def _passages(folder: Path, out: Path) -> None:
    rows: list[dict[str, object]] = [
        *ROWS,
        {"_id": "long", "text": "a mill by the river. " * 9, "year": 1},
    ]
    first = Index.build(rows, out=folder / "i", model=MODEL, chunk_tokens=16)
    export_index(first.path, "parquet", folder / "x.parquet")
    import_index(folder / "x.parquet", out, model=MODEL)


def _faiss(folder: Path, out: Path) -> None:
    export_index(Index.build(ROWS, out=folder / "i", model=MODEL).path, "faiss", folder / "x.faiss")
    import_index(folder / "x.faiss", out, model=MODEL)


def _npy(folder: Path, out: Path) -> None:
    np.save(folder / "x.npy", VECTORS)
    import_index(folder / "x.npy", out, model=MODEL)


WAYS: dict[str, Way] = {
    "parquet": _parquet,
    "passages": _passages,
    "faiss": _faiss,
    "npy": _npy,
}


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
