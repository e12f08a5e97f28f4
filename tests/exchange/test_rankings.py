"""Exports to Parquet and FAISS, and imports of them, have the ten best passages of the index.

`FAULT_SCALE=full` asks an index of 20,000 documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import get_args

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from sbert_search.exchange.export import export_index
from sbert_search.exchange.file_targets import sidecar
from sbert_search.exchange.import_index import import_index
from sbert_search.exchange.plan import Target
from sbert_search.index.index import Index
from sbert_search.index.storage.manifest import Metric, VectorType
from tests.exchange.queries import N_QUERIES, Best, Passage, best_rows, require_same, vectors_of
from tests.exchange.samples import sample
from tests.faults import FULL, keep_result

N_DOCS = 20_000 if FULL else 300
WHERE = "year >= 1910 AND 'river' IN tags"
TARGETS: tuple[Target, ...] = ("parquet", "faiss")
SCORES: dict[Metric, Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]] = {
    "cosine": lambda vectors, query: vectors @ query,
    "dot": lambda vectors, query: vectors @ query,
    "euclidean": lambda vectors, query: -np.linalg.norm(vectors - query, axis=1),
}


@pytest.mark.thorough
def test_files_and_imports_rank_as_the_index_does(tmp_path: Path) -> None:
    n_passages = set[int]()
    for metric, dtype in product(get_args(Metric), get_args(VectorType)):
        index = sample(tmp_path / f"{metric} {dtype}", N_DOCS, metric, dtype)
        queries = vectors_of(index, N_QUERIES)
        best, filtered = best_rows(index, queries), best_rows(index, queries, WHERE)
        n_passages.add(index.state.n_rows)
        for to in TARGETS:
            out = tmp_path / f"{metric}-{dtype}.{to}"
            export_index(index, to, out)
            again = import_index(out, tmp_path / f"{metric}-{dtype}-{to}")
            assert again.state.settings.dtype == dtype
            live, others = index.state.live_rows(), again.state.live_rows()
            if dtype == "float16":  # in float32, scaling changes the last bit
                assert np.array_equal(again.state.vectors(others), index.state.vectors(live))
            if to == "parquet":
                require_all_same(read_parquet(out, metric, queries), best)
            else:
                require_all_same(read_faiss(out, queries), best)
            require_all_same(imported(again, queries), best)
            require_all_same(imported(again, queries, WHERE), filtered)
    keep_result(
        "exchange_rankings",
        {
            "passages": max(n_passages),
            "metrics": list(get_args(Metric)),
            "types": list(get_args(VectorType)),
            "queries_each": N_QUERIES,
            "ways": [f"{to} {way}" for to in TARGETS for way in ("read", "imported", "filtered")],
            "rankings_that_differ": 0,
        },
    )


def require_all_same(found: Iterable[list[Passage]], best: Sequence[Best]) -> None:
    """Check the ten best passages of each query."""
    for ten, wanted in zip(found, best, strict=True):
        require_same(ten, wanted)


def read_parquet(
    path: Path, metric: Metric, queries: NDArray[np.float32]
) -> Iterator[list[Passage]]:
    """Rank the rows of a Parquet file as the code does that the export prints."""
    table = pq.read_table(path, columns=["doc_id", "chunk", "vector"])
    names = list(zip(table["doc_id"].to_pylist(), table["chunk"].to_pylist(), strict=True))
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(len(names), -1)
    for query in queries:
        rows = np.argsort(-SCORES[metric](vectors, query), kind="stable")[:10]
        yield [names[row] for row in rows.tolist()]


def read_faiss(path: Path, queries: NDArray[np.float32]) -> Iterator[list[Passage]]:
    """Search a FAISS file, whose rows the file beside it names."""
    table = pq.read_table(sidecar(path), columns=["doc_id", "chunk"])
    names = list(zip(table["doc_id"].to_pylist(), table["chunk"].to_pylist(), strict=True))
    for rows in faiss.read_index(str(path)).search(queries, 10)[1]:
        yield [names[row] for row in rows.tolist()]


def imported(
    index: Index, queries: NDArray[np.float32], where: str | None = None
) -> Iterator[list[Passage]]:
    """Search an index of an import, in which each passage is a document."""
    for best in best_rows(index, queries, where):
        named = [doc_id.rpartition("#") for (doc_id, _), _ in best[:10]]
        yield [(doc_id, int(chunk)) for doc_id, _, chunk in named]


def test_vectors_of_ids_alone_come_back_to_a_float16_index(tmp_path: Path) -> None:
    """Small dimensions, where rounding changes norms most, and components below float16's range."""
    draw = np.random.default_rng(1)
    for dim in (1, 2, 8, 1000):
        vectors = draw.standard_normal((2000, dim)).astype(np.float32)
        vectors[:, 1:3] *= 1e-6
        first = Index.from_vectors(vectors, out=tmp_path / f"{dim}", dtype="float16")
        stored = first.state.vectors(first.state.live_rows())
        again = Index.from_vectors(stored, out=tmp_path / f"{dim} again", dtype="float16")
        assert np.array_equal(again.state.vectors(again.state.live_rows()), stored)
        norms = np.linalg.norm(stored.astype(np.float64), axis=1)
        np.testing.assert_allclose(norms, 1, atol=6e-4)
