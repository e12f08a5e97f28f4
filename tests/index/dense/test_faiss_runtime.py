"""Parsing a FAISS file limits the memory of that parse, and of no other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import faiss

from sbert_search.index.dense.faiss_runtime import limited_to_file


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
