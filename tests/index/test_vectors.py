"""Any vectors: refused by name or stored and found exactly, however they lie in memory."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.base import files
from sbert_search.errors import IndexStoreError, QueryError
from sbert_search.index.dense.exact import TopK, scan
from sbert_search.index.dense.query_plan import Selection
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage import segments as npy
from sbert_search.index.storage.manifest import Manifest, Metric, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.index.batches import make_batch, some_documents, some_vectors

PLAIN = some_vectors(6)
SAME: dict[str, Any] = {
    "float64": PLAIN.astype(np.float64),
    "big-endian": PLAIN.astype(">f4"),
    "Fortran order": np.asfortranarray(PLAIN),
    "every other column": np.repeat(PLAIN, 2, axis=1)[:, ::2],
    "backwards": PLAIN[::-1][::-1],
    "read-only": np.frombuffer(PLAIN.tobytes(), np.float32).reshape(PLAIN.shape),
}
WRONG: dict[str, Any] = {
    "one number more": some_vectors(6, dim=9),
    "flat": PLAIN.ravel(),
    "objects": PLAIN.astype(object),
    "text": PLAIN.astype(str),
    "complex": PLAIN.astype(complex),
    "one row less": PLAIN[:5],
}


def made(path: Path, vectors: Any, metric: Metric = "dot") -> IndexStore:
    store = IndexStore.create(path, Manifest.new(VectorSettings(dim=8, metric=metric)))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(6), vectors))
    return store


@pytest.mark.parametrize("how", list(SAME))
def test_vectors_are_the_same_however_they_lie_in_memory(tmp_path: Path, how: str) -> None:
    store = made(tmp_path / "i", SAME[how])
    assert (store.snapshot.vectors(np.arange(6)) == PLAIN).all()
    expected = PLAIN.astype(np.float64) @ PLAIN[2].astype(np.float64)
    scores, rows = store.snapshot.search(SAME[how], 6)
    assert rows[2].tolist() == np.argsort(-expected).tolist()
    assert (scores[2] == np.sort(expected)[::-1].astype(np.float32)).all()


@pytest.mark.parametrize("how", list(WRONG))
def test_what_are_no_vectors_of_this_index_is_refused(tmp_path: Path, how: str) -> None:
    store = made(tmp_path / "i", PLAIN)
    batch = dataclasses.replace(make_batch(some_documents(6, "e"), PLAIN), vectors=WRONG[how])
    with store.writer() as writer, pytest.raises(IndexStoreError):
        writer.commit(batch)
    assert store.snapshot.n_docs == 6
    if how != "one row less":
        with pytest.raises(QueryError):
            store.snapshot.search(WRONG[how], 3)


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_zero_vectors_score_as_the_metric_has_it(tmp_path: Path, metric: Metric) -> None:
    vectors = PLAIN.copy()
    vectors[3] = 0
    store = made(tmp_path / "i", vectors, metric)
    scores, rows = store.snapshot.search(np.zeros((1, 8), np.float32), 6)
    assert np.isfinite(scores).all()
    assert rows[0, 0] == (3 if metric == "euclidean" else 0)
    assert sorted(rows[0].tolist()) == list(range(6))


def test_rows_beyond_32_bits_are_rows_like_others(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8)))
    first = 2**33 + 5
    manifest = dataclasses.replace(store.snapshot.manifest, next_row=first)
    manifests.write(store.snapshot.folder, manifest)
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(6), PLAIN))
        writer.commit(make_batch(some_documents(2), PLAIN[:2] + 1))
        writer.compact()
    assert store.snapshot.lookup(["d0", "d5"]).tolist() == [first + 6, first + 5]
    assert store.snapshot.search(PLAIN[4:5], 1)[1][0, 0] == first + 4
    assert store.snapshot.fetch([first + 4])[0].document.doc_id == "d4"
    assert check(store.path).problems == ()


def test_more_numbers_than_32_bits_count_are_addressed_right(tmp_path: Path) -> None:
    """2.2e9 numbers in a sparse file, of which only the last rows are read."""
    dim, n_rows = 1024, 2_200_000
    path, header = tmp_path / "vec.npy", npy.header("float16", (n_rows, dim))
    last = some_vectors(4, dim).astype(np.float16)
    path.write_bytes(header)
    os.truncate(path, len(header) + n_rows * dim * 2)
    with path.open("r+b") as file:
        file.seek(-last.nbytes, os.SEEK_END)
        file.write(last.tobytes())
    vectors = npy.read(files.map_file(path), "vec.npy", "float16", (n_rows, dim))
    wanted = np.zeros(n_rows, bool)
    wanted[[5, -4, -3, -2, -1]] = True
    top = TopK.empty(4, 1)
    rows = np.arange(n_rows) + 2**40
    queries = last.astype(np.float32)
    scan(queries, vectors, top, rows, metric="dot", max_norm=100.0, selection=Selection(wanted))
    assert top.rows[:, 0].tolist() == rows[-4:].tolist()
