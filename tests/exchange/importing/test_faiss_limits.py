"""A FAISS file is parsed with no more memory than it may need."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from sbert_search.errors import CorpusError
from sbert_search.exchange.import_index import import_index


def written(path: Path, n_vectors: int) -> Path:
    """Write an exact index of vectors of four numbers."""
    index = faiss.IndexFlatIP(4)
    index.add(np.ones((n_vectors, 4), np.float32))
    faiss.write_index(index, str(path))
    return path


def test_a_larger_file_opens_after_a_small_one(tmp_path: Path) -> None:
    small = import_index(written(tmp_path / "small.faiss", 3), tmp_path / "small")
    large = written(tmp_path / "large.faiss", 1_000)
    assert small.state.n_rows == 3
    assert faiss.read_index(str(large)).ntotal == 1_000
    assert import_index(large, tmp_path / "large").state.n_rows == 1_000


def test_a_file_that_claims_more_vectors_than_it_has_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "claims.faiss", 3)
    data = bytearray(path.read_bytes())
    at = data.index(
        (3 * 4).to_bytes(8, "little"), 33
    )  # the length of the vectors, after the header
    data[at : at + 8] = (1 << 32).to_bytes(8, "little")  # 16 GiB
    path.write_bytes(data)
    before = faiss.get_deserialization_vector_byte_limit()
    with pytest.raises(CorpusError, match=r"claims.faiss: cannot be read as a FAISS index"):
        import_index(path, tmp_path / "imported")
    assert faiss.get_deserialization_vector_byte_limit() == before
