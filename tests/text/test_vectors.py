"""Given vectors: which arrays and values are taken, and why others are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sbert_search.errors import CorpusError
from sbert_search.text.documents import CorpusReader
from sbert_search.text.fields import FieldNames
from sbert_search.text.formats.rows import BadRow
from sbert_search.text.vectors import RowVectors, VectorReader, VectorRule, vector_problems

MATRIX = np.array([[1.0, 0.5], [-2.0, 0.25], [0.0, 4.0]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_floats_of_every_size_are_read_as_float32(dtype: str) -> None:
    vectors = RowVectors.open(MATRIX.astype(dtype))
    assert (len(vectors), vectors.dim) == (3, 2)
    block = vectors.block(1, 3)
    assert block.dtype == np.float32
    assert block.tolist() == [[-2.0, 0.25], [0.0, 4.0]]


def test_tensors_and_files_are_read_like_arrays(tmp_path: Path) -> None:
    tensor = torch.tensor(MATRIX, dtype=torch.float32, requires_grad=True)
    np.save(tmp_path / "v.npy", MATRIX)
    mapped = RowVectors.open(tmp_path / "v.npy")
    assert isinstance(mapped.array, np.memmap)
    hashes = {RowVectors.open(v).sha256() for v in (MATRIX, tensor, str(tmp_path / "v.npy"))}
    assert len(hashes) == 1
    assert RowVectors.open(MATRIX + 1).sha256() not in hashes


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones(3), "shape (3,); it must be (rows, dimensions)"),
        (np.ones((2, 0)), "shape (2, 0)"),
        (np.ones((2, 3), np.int64), "of type int64; convert it to float32"),
        (torch.ones(2, 3, dtype=torch.bfloat16), "Pass a numpy array, or a float32 tensor"),
        ([["a"], ["b"]], "of type <U1; convert it to float32"),
    ],
)
def test_other_arrays_are_refused(vectors: Any, message: str) -> None:
    with pytest.raises(CorpusError, match=re.escape(message)):
        RowVectors.open(vectors)


def test_files_that_are_no_array_of_vectors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    np.savez(tmp_path / "many.npz", MATRIX)
    (tmp_path / "many.npz").rename(tmp_path / "many.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    for name in ("text", "many", "objects", "absent"):
        with pytest.raises(CorpusError, match=f"{name}.npy: "):
            RowVectors.open(tmp_path / f"{name}.npy")


def test_the_reason_names_what_is_wrong_with_a_vector() -> None:
    vectors = np.array(
        [[1, 2], [np.nan, 1], [0, 0], [-np.inf, 0], [1e30, 1], [1e-30, 0], [7e4, 0]], np.float32
    )
    cosine = vector_problems(vectors, VectorRule())
    assert [bool(problem) for problem in cosine] == [False, True, True, True, False, False, False]
    assert "not finite" in cosine[1]
    assert "all zeros" in cosine[2]
    assert [bool(p) for p in vector_problems(vectors, VectorRule(nonzero=False))] == [
        *(False, True, False, True, True, False, False)
    ]
    assert "norm above 1e+18" in vector_problems(vectors, VectorRule(nonzero=False))[4]
    half = vector_problems(vectors, VectorRule(nonzero=False, dtype="float16"))
    assert "too large for float16" in half[6]
    assert half[2] == half[5] == ""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the row has no vector ('v' is missing)"),
        ("[1, 2]", "of type str; a vector is a list of numbers"),
        ([True, False], "a vector is a list of numbers"),
        ([1.0, None], "a vector is a list of numbers"),
        ([[1.0], [2.0]], "a vector is a list of numbers"),
        ([[1.0], [2.0, 3.0]], "not a list of numbers"),
        ([1.0], "has 1 dimensions, not 2"),
        ([], "has 0 dimensions, not 2"),
        ([1e300, 0], "not finite in float32"),
    ],
)
def test_a_value_that_is_no_vector_of_the_index_is_a_bad_row(value: object, reason: str) -> None:
    reader = VectorReader(VectorRule(dim=2))
    with pytest.raises(BadRow, match=re.escape(reason)):
        reader.of_value(value, "v")


def test_a_rejected_row_takes_its_own_vector_along() -> None:
    rows = [{"_id": i, "text": "t"} for i in range(6)]
    rows[1]["_id"] = rows[4]["_id"] = ""
    vectors = RowVectors.open(np.arange(12, dtype=np.float32).reshape(6, 2) - 6)  # row 3 is 0, 1
    vectors.array[2] = np.nan
    reader = CorpusReader(rows, on_error="skip", vectors=vectors, batch_rows=4)
    survey = reader.survey()
    assert (survey.rows, survey.rejected, survey.dim) == (6, 3, 2)
    first, second = reader.batches()
    assert [document.doc_id for document in first.documents] == ["0", "3"]
    assert first.vectors is not None
    assert first.vectors.tolist() == [[-6, -5], [0, 1]]
    assert [reject.source for reject in first.rejects] == ["rows:2", "rows:3"]
    (resumed,) = reader.batches(skip_rows=first.rows_end)
    for batch in (second, resumed):
        assert batch.vectors is not None
        assert batch.vectors.tolist() == [[4, 5]]
        assert [reject.source for reject in batch.rejects] == ["rows:5"]


@pytest.mark.parametrize("n_vectors", [2, 4])
def test_a_number_of_vectors_that_is_not_that_of_the_rows_is_an_error(n_vectors: int) -> None:
    rows = [{"_id": i, "text": "t"} for i in range(3)]
    reader = CorpusReader(rows, on_error="skip", vectors=RowVectors(np.ones((n_vectors, 2))))
    with pytest.raises(CorpusError, match=f"{n_vectors} vectors for"):
        reader.survey()


def test_the_first_vector_of_a_column_sets_the_dimension() -> None:
    values = [None, "x", [1.0, 2.0], [1, 2, 3], [0, 5]]
    rows = [{"_id": i, "v": value} for i, value in enumerate(values)]
    reader = CorpusReader(rows, fields=FieldNames(vector="v"), on_error="skip")
    assert reader.survey().dim == 2
    (batch,) = reader.batches()
    assert batch.vectors is not None
    assert batch.vectors.tolist() == [[1, 2], [0, 5]]
    assert [reject.source for reject in batch.rejects] == ["rows:1", "rows:2", "rows:4"]
    assert batch.documents[0].metadata == {}
