"""The nearest documents over passages, against sorting all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.index import Index
from sbert_search.search.candidates import nearest_documents
from tests.search.corpus import small_index

EMBEDDER = HashingEmbedder(64, max_len=4)
WORDS = [f"w{n}" for n in range(30)]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """120 documents of 1 to 40 words, cut into passages of 4."""
    rng = np.random.default_rng(7)
    rows = [
        {"id": n, "text": " ".join(rng.choice(WORDS, size=rng.integers(1, 41))), "even": n % 2 == 0}
        for n in range(120)
    ]
    return small_index(
        tmp_path_factory.mktemp("dense"),
        rows,
        embedder=EMBEDDER,
        settings=BuildSettings(on_truncate="chunk"),
    )


@pytest.mark.parametrize("where", [None, "even = TRUE"])
@pytest.mark.parametrize("k", [1, 7, 60, 500])
def test_documents_count_by_their_best_passage(index: Index, k: int, where: str | None) -> None:
    snapshot = index.state
    assert snapshot.n_rows > 4 * snapshot.n_docs
    mask = snapshot.filter_mask(where) if where else None
    queries = EMBEDDER.encode_query(["w1 w2", "w3", "w4 w5 w6 w7", "elsewhere"])
    found = nearest_documents(snapshot, queries, k, mask)
    for hits, expected in zip(found, _sorted_documents(index, queries, where), strict=True):
        assert list(zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)) == expected[:k]


def _sorted_documents(
    index: Index, queries: np.ndarray, where: str | None
) -> list[list[tuple[int, float]]]:
    """Rank all rows, and keep each document's first."""
    snapshot = index.state
    scores, rows = snapshot.search(queries, snapshot.n_rows)
    passages = {passage.row: passage for passage in snapshot.fetch(np.arange(snapshot.n_rows))}
    ranked: list[list[tuple[int, float]]] = []
    for row_scores, row_numbers in zip(scores, rows, strict=True):
        best: dict[str, tuple[int, float]] = {}
        for score, row in zip(row_scores.tolist(), row_numbers.tolist(), strict=True):
            document = passages[row].document
            if where is None or document.metadata["even"]:
                best.setdefault(document.doc_id, (row, score))
        ranked.append(list(best.values()))
    return ranked


def test_one_document_with_many_passages_does_not_crowd_out_others(tmp_path: Path) -> None:
    rows = [{"id": "long", "text": "cat " * 400}, {"id": "short", "text": "dog"}]
    settings = BuildSettings(on_truncate="chunk")
    index = small_index(tmp_path, rows, embedder=EMBEDDER, settings=settings)
    assert index.state.n_rows == 101
    (hits,) = nearest_documents(index.state, EMBEDDER.encode_query(["cat"]), 2)
    assert hits.rows.tolist() == [0, 100]
