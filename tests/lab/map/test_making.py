from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.base import memory
from sbert_search.base.memory import anonymous_bytes
from sbert_search.errors import ConfigError, CorruptIndex, EvaluationError, SbertSearchError
from sbert_search.index.index import Index
from sbert_search.index.storage.manifest import Metric
from sbert_search.lab.map import making
from sbert_search.lab.map.making import map_index
from sbert_search.lab.map.record import CorpusMap
from sbert_search.lab.map.saving import summary
from sbert_search.search.pairs import close_pairs, clusters
from tests.lab.map.conftest import TOPICS, N, clustered, rows
from tests.limits import memory_limited


def test_a_map_describes_every_document(drawn: CorpusMap, index: Index) -> None:
    assert drawn.doc_ids == [f"d{i}" for i in range(N)]
    assert drawn.titles[1] == "Title 1"
    assert drawn.titles[4] == f"{TOPICS[1]} number4"  # no title: the begin of the text
    assert drawn.texts[5] == f"{TOPICS[2]} number5"
    np.testing.assert_array_equal(drawn.cluster, np.arange(N) % 3)
    assert [set(words[:3]) for words in drawn.words] == [set(topic.split()) for topic in TOPICS]
    assert [column.name for column in drawn.columns] == sorted(index.state.columns)
    assert drawn.left_out == []
    assert drawn.layout.shape == drawn.axes.shape == (N, 2)
    assert np.isfinite(drawn.layout).all()


def test_the_same_seed_gives_the_same_map(index: Index, drawn: CorpusMap) -> None:
    again = map_index(index.path, neighbours=8, clusters=3, duplicates=0.9)
    for name in ("layout", "axes", "cluster", "distances", "group"):
        np.testing.assert_array_equal(getattr(again, name), getattr(drawn, name))
    assert again.words == drawn.words


def test_near_duplicates_are_those_of_pairs(index: Index, drawn: CorpusMap) -> None:
    expected = clusters(close_pairs(index.state, 0.9))
    assert drawn.groups() == expected
    assert len(expected) > 0


def test_a_sample_has_its_own_neighbours_and_says_of_how_many(index: Index) -> None:
    sample = map_index(index, points=30, neighbours=5, seed=4)
    assert (len(sample), sample.n_indexed) == (30, N)
    assert sample.doc_ids == map_index(index, points=30, neighbours=5, seed=4).doc_ids
    vectors = clustered()[[int(doc_id[1:]) for doc_id in sample.doc_ids]].astype(float)
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -1)
    np.testing.assert_array_equal(sample.neighbours.at[:, 0], scores.argmax(axis=1))


def test_fewer_documents_than_neighbours_and_deleted_ones(tmp_path: Path) -> None:
    index = Index.build(rows(5), out=tmp_path / "i", vectors=clustered(5))
    index.delete(ids=["d1"])
    drawn = map_index(index)
    assert drawn.doc_ids == ["d0", "d2", "d3", "d4"]
    assert drawn.neighbours.at.shape == (4, 3)
    assert np.isfinite(drawn.layout).all()


@pytest.mark.parametrize(("n", "holds"), [(0, "no documents"), (1, "1 document"), (2, "2 docu")])
def test_too_few_documents_are_refused(tmp_path: Path, n: int, holds: str) -> None:
    index = Index.build(rows(4), out=tmp_path / "i", vectors=clustered(4))
    index.delete(ids=[f"d{i}" for i in range(n, 4)])
    with pytest.raises(EvaluationError, match=f"holds {holds}.*at least 3"):
        map_index(index)


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_other_metrics(tmp_path: Path, metric: Metric, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = clustered(30) * 2
    index = Index.build(rows(30), out=tmp_path / "i", vectors=vectors, metric=metric)
    drawn = map_index(index, duplicates=3.8, neighbours=4)
    assert np.isfinite(drawn.distances).all()
    if metric == "euclidean":
        assert drawn.groups() == []
        assert summary(drawn)["duplicates_from"] is None
        assert "No near-duplicates are searched" in capsys.readouterr().err
    else:
        assert drawn.groups() == clusters(close_pairs(index.state, 3.8))


def test_queries_mark_their_hits(tmp_path: Path) -> None:
    index = Index.build(rows(12), out=tmp_path / "i", model="hashing")
    drawn = map_index(index, queries=["oven number4"], neighbours=3)
    [marked] = drawn.queries
    assert marked.text == "oven number4"
    assert drawn.doc_ids[marked.at[0]] == "d4"
    assert marked.scores == sorted(marked.scores, reverse=True)
    sampled = map_index(index, queries=["oven number4"], points=5, neighbours=3)
    assert set(sampled.queries[0].at) <= set(range(5))


def test_settings_are_checked_before_work(index: Index) -> None:
    with pytest.raises(ConfigError, match="language"):
        map_index(index, language="klingon")
    with (
        memory_limited(anonymous_bytes() + (1 << 20)),
        pytest.raises(ConfigError, match=r"A map of 90 documents takes .*set_memory_limit"),
    ):
        map_index(index)


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    index = Index.build(rows(12), out=tmp_path / "i", vectors=clustered(12))
    [docs] = (index.path / "seg").glob("*.docs.arrow")
    docs.write_bytes(docs.read_bytes()[:-50])
    with pytest.raises(CorruptIndex, match=docs.name):
        map_index(tmp_path / "i")
    with pytest.raises(SbertSearchError, match="nowhere"):
        map_index(tmp_path / "nowhere")


def test_metadata_count_for_the_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [row | {"note": 1000 * "x"} for row in rows(60)]
    index = Index.build(documents, out=tmp_path / "i", vectors=clustered(60))
    needed: list[int] = []
    monkeypatch.setattr(making, "_BLOCK", 20)
    monkeypatch.setattr(memory, "require", lambda size, what: needed.append(size))
    with memory_limited(1 << 30):
        map_index(index, neighbours=3)
    _, after_20, after_40, after_all = needed
    assert 40_000 < after_20 < 48_000  # of the other 40 documents
    assert 20_000 < after_40 < 24_000
    assert after_all == 0
