"""Maximal marginal relevance by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.records import Document
from sbert_search.search.fusion import Ranking
from sbert_search.search.ordering import diversify
from tests.index.batches import make_batch

# The first two are the same direction, the third is at a right angle, the last is opposite.
VECTORS = np.array([[1, 0], [2, 0], [0, 3], [-1, 0]], np.float32)


def rank(folder: Path, scores: list[float], diversity: float, n: int = 4) -> Ranking:
    store = IndexStore.create(folder / "i", Manifest.new(VectorSettings(dim=2, metric="dot")))
    with store.writer() as writer:
        writer.commit(make_batch([Document(c, c) for c in "abcd"], VECTORS, [1] * 4))
    rows = np.arange(len(scores))
    ranking = Ranking(rows, rows, np.array(scores)).with_stage("dense")
    relevance = (np.array(scores) - 5) / 4  # the best of the tests below has 1, the worst 0
    return diversify(store.snapshot, ranking, relevance, diversity, n)


@pytest.mark.parametrize(
    ("diversity", "order", "values"),
    [
        (0.0, [0, 1, 2, 3], [1.0, 0.75, 0.5, 0.0]),
        # After a, b has 0.375 - 0.5, c 0.25 - 0, d 0 + 0.5; after d, c has 0.25 - 0.
        (0.5, [0, 3, 2, 1], [0.5, 0.5, 0.25, -0.125]),
        # After a, b has 0.675 - 0.1, c 0.45 - 0, d 0 + 0.1.
        (0.1, [0, 1, 2, 3], [0.9, 0.575, 0.45, 0.0]),
        (1.0, [0, 3, 2, 1], [0.0, 1.0, 0.0, -1.0]),
    ],
)
def test_relevance_and_similarity_are_weighed(
    tmp_path: Path, diversity: float, order: list[int], values: list[float]
) -> None:
    ranking = rank(tmp_path, [9.0, 8.0, 7.0, 5.0], diversity)
    assert ranking.docs.tolist() == order
    ranks, found = ranking.stages["mmr"]
    assert (ranks.tolist(), found.tolist()) == ([1, 2, 3, 4], pytest.approx(values))
    assert ranking.scores.tolist() == [[9.0, 8.0, 7.0, 5.0][i] for i in order]


def test_equal_values_keep_the_order_of_the_ranks(tmp_path: Path) -> None:
    assert rank(tmp_path, [1.0] * 4, 0.0).docs.tolist() == [0, 1, 2, 3]


def test_only_as_many_are_chosen_as_wanted(tmp_path: Path) -> None:
    assert rank(tmp_path, [9.0, 8.0, 7.0, 5.0], 0.5, n=2).docs.tolist() == [0, 3]


def test_no_candidate_gives_no_document(tmp_path: Path) -> None:
    assert len(rank(tmp_path, [], 0.5)) == 0
