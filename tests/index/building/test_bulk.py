"""Builds of ids and vectors without texts: they equal builds from rows, and resume."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search.base.files import use_disk
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError, CorpusError, IndexStoreError
from sbert_search.index.building import id_vectors
from sbert_search.index.building import id_vectors as bulk
from sbert_search.index.building.id_vectors import IdVectors, fast_norms
from sbert_search.index.index import Index
from sbert_search.records import RowCounts
from sbert_search.search.engine import SearchEngine
from sbert_search.text.vectors import RowVectors, VectorRule
from tests.faults import FaultDisk, Killed

VECTORS = np.array([[1, 0], [0, 2], [3, 4], [-1, 0]], np.float32)


def counts_of(index: Index) -> RowCounts:
    build = index.state.manifest.build
    assert build is not None
    return build.counts


def same_index(one: Index, other: Index) -> None:
    """Compare two indexes; a vector may differ by the rounding of its norm."""
    first, second = one.state, other.state
    rows = first.live_rows()
    assert np.array_equal(rows, second.live_rows())
    assert first.doc_ids(rows) == second.doc_ids(rows)
    np.testing.assert_allclose(first.vectors(rows), second.vectors(rows), rtol=1e-6)
    assert counts_of(one) == counts_of(other)
    assert first.settings == second.settings
    assert first.columns == second.columns
    tables = [[segment.ids for segment in state.segments] for state in (first, second)]
    for left, right in zip(*tables, strict=True):
        assert np.array_equal(left, right)
    pairs = zip(first.manifest.segments, second.manifest.segments, strict=True)
    for a, b in pairs:
        assert a.vectors["v1"].max_norm == pytest.approx(b.vectors["v1"].max_norm, rel=1e-6)
    assert one.check().problems == other.check().problems == ()


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_equals_a_build_from_rows(metric: Any, dtype: Any) -> None:
    ids = ["b", "a", "ä", "10"]
    bulk_built = Index.from_vectors(VECTORS, ids=ids, metric=metric, dtype=dtype)
    rows = [{"_id": doc_id} for doc_id in ids]
    same_index(bulk_built, Index.build(rows, vectors=VECTORS, metric=metric, dtype=dtype))
    document = bulk_built.get("ä")
    assert document is not None
    assert (document.text, document.title, document.source) == ("", "", "vectors:3")
    assert [hit.doc_id for hit in SearchEngine(bulk_built).similar("ä", 1)] == ["a"]


@pytest.mark.parametrize(
    "ids",
    [
        None,
        [0, 1, 2, 3],
        range(4),
        np.arange(4),
        ["0", "1", "2", "3"],
        iter("0123"),
        ["0", 1, "2", 3],
        pa.array(["0", "1", "2", "3"]),
        pa.array([0, 1, 2, 3]),
        np.array(["0", "1", "2", "3"]),
    ],
)
def test_ids_are_texts_or_integers_of_any_array(ids: Any) -> None:
    index = Index.from_vectors(VECTORS, ids=ids)
    assert index.state.doc_ids(index.state.live_rows()) == ["0", "1", "2", "3"]
    assert index.delete(2) == 1


def test_bad_ids_and_vectors_are_rejected_by_row(tmp_path: Path) -> None:
    ids: Any = ["a", "", "c", None, "e", " ", "x" * 1025, "n\0", "s\ud800", True, 1.5, "a", "a"]
    vectors = np.ones((len(ids), 2))
    vectors[2] = 0
    vectors[4, 1] = math.nan
    vectors[12] = [0, 1]
    message = "vectors:2: the row has no id ('id' is missing or empty)"
    with pytest.raises(CorpusError, match=re.escape(message)):
        Index.from_vectors(vectors, ids=ids, out=tmp_path / "i")
    assert not (tmp_path / "i").exists()
    index = Index.from_vectors(vectors, ids=ids, out=tmp_path / "i", on_error="skip")
    assert counts_of(index) == RowCounts(indexed=1, duplicate=1, rejected=11)
    listed = (tmp_path / "i.rejects.jsonl").read_text().splitlines()
    assert [f'"vectors:{row}"' in line for row, line in enumerate(listed, 2)][:9] == [True] * 9
    assert "with other content" in listed[-1]
    assert "vectors:13" in listed[-1]
    assert index.state.doc_ids(index.state.live_rows()) == ["a"]


@pytest.mark.parametrize(
    ("vectors", "ids", "message"),
    [
        (VECTORS, ["a"], "4 vectors for 1 ids"),
        (VECTORS, "abcd", "ids is no list of ids"),
        (VECTORS[:0], None, "holds no vectors"),
        (VECTORS, ["a", "b", "a", "c"], "vectors:3: the id also occurs in vectors:1"),
        (np.ones((2, 2), int), None, "convert it to float32"),
        ("absent.npy", None, "absent.npy: cannot be read"),
    ],
)
def test_what_cannot_be_built_writes_nothing(
    vectors: Any, ids: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CorpusError, match=re.escape(message)):
        Index.from_vectors(vectors, ids=ids, out=tmp_path / "i")
    assert not (tmp_path / "i").exists()
    with pytest.raises(ConfigError, match="device: no model is opened"):
        Index.from_vectors(VECTORS, device="cpu")


def test_with_a_model_texts_can_be_searched(tmp_path: Path) -> None:
    model = HashingEmbedder(dim=32)
    vectors = model.encode_document(["red wine", "blue sky"])
    np.save(tmp_path / "v.npy", vectors)
    index = Index.from_vectors(tmp_path / "v.npy", ids=["wine", "sky"], model=model)
    hits = SearchEngine(index, model).search("blue sky", k=1, mode="dense")
    assert [hit.doc_id for hit in hits] == ["sky"]
    assert index.add([{"_id": "tea", "text": "tea"}], model=model).counts.indexed == 1
    with pytest.raises(IndexStoreError, match="already holds a finished index"):
        Index.from_vectors(VECTORS, out=index.path)


@pytest.mark.parametrize(("metric", "large"), [("cosine", 3e38), ("dot", 3e17)])
def test_very_large_and_very_small_vectors_keep_their_direction(metric: Any, large: float) -> None:
    vectors = np.array([[large, large], [3e-45, 0], [1e-30, -1e-30], [1, 1]], np.float32)
    rows = [{"_id": n} for n in range(4)]
    index = Index.from_vectors(vectors, metric=metric)
    same_index(index, Index.build(rows, vectors=vectors, metric=metric))


def test_a_norm_whose_scores_float32_cannot_hold_is_refused_as_in_other_builds() -> None:
    rows = np.array([[1, 0], [1e19, 0]], np.float32)
    with pytest.raises(CorpusError, match=r"norm above 1e\+18"):
        Index.build([{"_id": "0"}, {"_id": "1"}], vectors=rows, metric="dot")
    with pytest.raises(CorpusError, match=r"norm above 1e\+18"):
        Index.from_vectors(rows, metric="dot")
    assert len(Index.from_vectors(rows, metric="cosine")) == 2  # which stores directions only


def test_the_hash_of_a_source_separates_the_ids_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_vectors, "BLOCK_ROWS", 1)
    rule = VectorRule(nonzero=True, dtype="float32")

    def hash_of(*ids: str) -> str:
        vectors = RowVectors(np.ones((2, 2), np.float32))
        return IdVectors(vectors, list(ids), rule=rule, on_error="stop").survey().sha256

    assert hash_of("b", "cd") == hash_of("b", "cd")
    assert hash_of("b", "cd") != hash_of("bc", "d")


def test_norms_are_those_of_float64() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 300)) * 10.0 ** rng.integers(-25, 25, (50, 1))
    small = np.concatenate([vectors.astype(np.float32), np.zeros((1, 300), np.float32)])
    expected = np.linalg.norm(small.astype(np.float64), axis=1)
    np.testing.assert_allclose(fast_norms(small), expected, rtol=1e-6)


VALUES = st.sampled_from([(1.0, 0.0), (0.0, 1.0), (0.6, 0.8), (0.0, 0.0), (math.inf, 1.0)])
INPUT = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "", "d" * 1025]), VALUES), min_size=1)


@settings(max_examples=12, deadline=None)
@given(rows=INPUT)
def test_random_rows_end_as_in_a_build_from_rows(rows: Any) -> None:
    rows = [("start", (1.0, 0.0)), *rows]
    ids, vectors = [doc_id for doc_id, _ in rows], np.array([vector for _, vector in rows])
    index = Index.from_vectors(vectors, ids=ids, on_error="skip")
    plain = [{"_id": doc_id} for doc_id in ids]
    same_index(index, Index.build(plain, vectors=vectors, on_error="skip"))


def test_a_killed_build_resumes_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "SEGMENT_ROWS", 1000)
    vectors = np.random.default_rng(0).normal(size=(4500, 3))
    vectors[[7, 3500]] = np.nan
    ids = [str(i % 4400) for i in range(4500)]  # the last 100 repeat; 7 is new there

    def build(name: str) -> Index:
        return Index.from_vectors(vectors, ids=ids, out=tmp_path / name, on_error="skip")

    whole = build("whole")
    done = []
    for killed_at in (25, 45, 60):
        with use_disk(FaultDisk(killed_at, "kill")), pytest.raises(Killed):
            build("killed")
        done.append(Index.open(tmp_path / "killed").state.manifest.next_row)
    assert done == sorted(done)
    assert 0 == done[0] < done[1] < done[2]
    killed = build("killed")
    same_index(whole, killed)
    assert counts_of(whole) == RowCounts(indexed=4399, rejected=101)
    rejects = [(tmp_path / f"{name}.rejects.jsonl").read_text() for name in ("whole", "killed")]
    assert rejects[0] == rejects[1]
    first, second = whole.state, killed.state
    rows = first.live_rows()
    assert np.array_equal(first.vectors(rows), second.vectors(rows))
