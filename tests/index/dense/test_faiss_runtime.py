"""Parsing a FAISS file limits the memory of that parse, and of no other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pytest

from sbert_search.errors import CorpusError
from sbert_search.exchange.importing.import_index import import_index
from sbert_search.index.dense.faiss_runtime import limited_to_file


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


def test_threads_keep_their_own_limits() -> None:
    together = threading.Barrier(8)

    def limits(n_bytes: int) -> set[int]:
        together.wait()
        found = set[int]()
        for _ in range(200):
            with limited_to_file(n_bytes):
                found.add(faiss.get_deserialization_vector_byte_limit())
        return found

    before = faiss.get_deserialization_vector_byte_limit()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(limits, range(1, 9))) == [{2 * n} for n in range(1, 9)]
    assert faiss.get_deserialization_vector_byte_limit() == before
