"""Indexes of vectors that the user has: the accounting of rows, changes, models, resumed builds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sbert_search.base.files import use_disk
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError, CorpusError, ModelMismatch
from sbert_search.index.building.build import BuildSettings, build_index
from sbert_search.index.index import Index
from sbert_search.records import RowCounts
from sbert_search.search.engine import SearchEngine
from sbert_search.text.documents import FieldNames
from sbert_search.text.vectors import RowVectors
from tests.faults import FaultDisk, Killed

ROWS: list[dict[str, object]] = [
    {"_id": "a", "text": "red"},
    {"_id": "b", "year": 1},
    {"_id": "c"},
    {"_id": "d"},
]
VECTORS = np.array([[1, 0], [0, 2], [3, 4], [-1, 0]], np.float32)


def stored(index: Index) -> dict[str, list[float]]:
    rows = index.state.live_rows()
    vectors = index.state.vectors(rows).astype(float).round(4).tolist()
    return dict(zip(index.state.doc_ids(rows), vectors, strict=True))


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_vectors_are_stored_under_the_ids_of_their_rows(metric: Any) -> None:
    index = Index.build(ROWS, vectors=VECTORS, metric=metric)
    norms = np.linalg.norm(VECTORS, axis=1, keepdims=True) if metric == "cosine" else 1
    expected = (VECTORS / norms).astype(float).round(4).tolist()
    assert stored(index) == dict(zip("abcd", expected, strict=True))
    assert index.check().problems == ()
    assert not index.identity.is_model
    assert (index.identity.name, index.identity.dim) == ("vectors", 2)
    assert [(doc.text, dict(doc.metadata)) for doc in index][:2] == [("red", {}), ("", {"year": 1})]


def test_rows_may_be_nothing_but_vectors() -> None:
    index = Index.build([{} for _ in VECTORS], vectors=VECTORS, metric="dot")
    expected = VECTORS.astype(float).tolist()
    assert stored(index) == {f"rows#{n}": vector for n, vector in enumerate(expected, start=1)}


def test_the_dimension_of_an_empty_index_is_any_integer(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", dim=np.int64(2))  # type: ignore[arg-type]
    index.add(ROWS, vectors=VECTORS)
    assert len(Index.open(tmp_path / "i")) == 4
    for wrong in (0, 2.0, "2", True):
        with pytest.raises(ConfigError, match=f"^dim is {wrong!r}; it must be an integer"):
            Index.create(tmp_path / "j", dim=wrong)  # type: ignore[arg-type]


def test_bad_vectors_reject_their_rows_and_shift_no_other(tmp_path: Path) -> None:
    vectors = VECTORS.copy()
    vectors[1] = 0
    vectors[2, 1] = math.inf
    with pytest.raises(CorpusError, match=re.escape("rows:2: the vector is all zeros")):
        Index.build(ROWS, out=tmp_path / "i", vectors=vectors)
    assert not (tmp_path / "i").exists()
    index = Index.build(ROWS, out=tmp_path / "i", vectors=vectors, on_error="skip")
    assert stored(index) == {"a": [1, 0], "d": [-1, 0]}
    assert (tmp_path / "i.rejects.jsonl").read_text().count("\n") == 2
    build = index.state.manifest.build
    assert build is not None
    assert build.counts == RowCounts(indexed=2, rejected=2)


def test_another_number_of_vectors_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="3 vectors for"):
        Index.build(ROWS, out=tmp_path / "i", vectors=VECTORS[:3])
    assert not (tmp_path / "i").exists()
    index = Index.build(ROWS, vectors=VECTORS)
    with pytest.raises(CorpusError, match="4 vectors for 2 rows"):
        index.add(ROWS[:2], vectors=VECTORS)
    with pytest.raises(CorpusError, match="3 dimensions, and those of the index have 2"):
        index.add(ROWS[:2], vectors=np.ones((2, 3)))
    assert len(index) == 4


def test_another_vector_is_another_content() -> None:
    index = Index.build(ROWS, vectors=VECTORS)
    assert index.add(ROWS, vectors=VECTORS).counts == RowCounts(duplicate=4)
    changed = VECTORS.copy()
    changed[2] = [0, -1]
    assert index.add(ROWS, vectors=changed, on_error="skip").counts == RowCounts(
        duplicate=3, rejected=1
    )
    assert index.upsert(ROWS, vectors=changed).counts == RowCounts(replaced=1, duplicate=3)
    assert stored(index)["c"] == [0, -1]
    texts = [{**row, "text": "new"} for row in ROWS]
    assert index.upsert(texts, vectors=changed).counts == RowCounts(replaced=4)
    index.compact()
    assert index.upsert(texts, vectors=changed).counts == RowCounts(duplicate=4)


def test_an_id_with_two_vectors_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    rows = [*ROWS[:2], ROWS[0]]
    with pytest.raises(CorpusError, match="the id also occurs in rows:1, with other content"):
        Index.build(rows, out=tmp_path / "i", vectors=VECTORS[:3])
    same = VECTORS[[0, 1, 0]]
    index = Index.build(rows, out=tmp_path / "i", vectors=same)
    build = index.state.manifest.build
    assert build is not None
    assert build.counts == RowCounts(indexed=2, duplicate=1)


def test_without_a_model_texts_are_refused_and_everything_else_works(tmp_path: Path) -> None:
    index = Index.build(ROWS, vectors=VECTORS)
    engine = SearchEngine(index)
    with pytest.raises(ModelMismatch, match="given without a model, so no text can be embedded"):
        engine.search("red", mode="dense")
    for add in (index.add, index.upsert):
        with pytest.raises(CorpusError, match=r"rows:1: .* no model that could embed it \(e\)"):
            add([{"_id": "e", "text": "blue"}])
    assert index.upsert([{"_id": "c", "year": 9}], partial=True).reused == 1
    assert index.upsert([{"_id": "a", "text": "red", "year": 9}]).reused == 1
    with pytest.raises(CorpusError, match=r"rows:1: .* no model that could embed it \(b\)"):
        index.upsert([{"_id": "b", "text": "blue"}], partial=True)
    with pytest.raises(ModelMismatch, match="given without a model"):
        SearchEngine(index, HashingEmbedder(dim=2))
    assert [hit.doc_id for hit in engine.similar("a", 2)] == ["c", "b"]
    assert [hit.doc_id for hit in engine.search("red", mode="lexical")] == ["a"]
    assert [hit.doc_id for hit in engine.similar("a", where="year = 1")] == ["b"]
    index.backup(tmp_path / "copy")
    assert stored(Index.open(tmp_path / "copy")) == stored(index)
    assert index.info().documents == 4
    assert index.delete("a") == 1
    assert index.repair() == []


def test_with_a_model_texts_are_embedded_by_it(tmp_path: Path) -> None:
    model = HashingEmbedder(dim=32)
    texts = ["red wine", "blue sky", "green tea"]
    vectors = model.encode_document(texts)
    index = Index.from_texts(texts, model=model, vectors=vectors)
    assert index.identity.dim == 32
    hits = SearchEngine(index, model).search("blue sky", k=1, mode="dense")
    assert (hits[0].doc_id, round(hits[0].score, 4)) == ("1", 1.0)
    # Vectors may be given to an index of texts, and texts to an index of vectors.
    index.add([{"_id": "x", "text": "black tea"}], model=model)
    index.add([{"_id": "y"}], vectors=model.encode_document(["grey sky"]))
    found = SearchEngine(index, model).search("grey sky", k=2, mode="dense")
    assert [hit.doc_id for hit in found] == ["y", "1"]
    with pytest.raises(ModelMismatch, match="3 dimensions, and hashing:32 makes vectors of 32"):
        Index.build(ROWS, out=tmp_path / "i", model=model, vectors=np.ones((4, 3)))
    assert not (tmp_path / "i").exists()


def test_options_of_a_model_that_is_not_opened_are_refused() -> None:
    with pytest.raises(ConfigError, match="device: no model is opened"):
        Index.build(ROWS, vectors=VECTORS, device="cpu")


def test_the_column_of_a_build_is_read_by_later_updates() -> None:
    rows = [{**row, "v": vector.tolist()} for row, vector in zip(ROWS, VECTORS, strict=True)]
    index = Index.build(rows, vectors="v")
    assert stored(index) == stored(Index.build(ROWS, vectors=VECTORS))
    assert index.state.columns.keys() == {"year"}
    assert index.add(rows).counts == RowCounts(duplicate=4)
    assert index.add(ROWS, vectors=VECTORS).counts == RowCounts(duplicate=4)
    index.add([{"_id": "e", "w": [1.0, 1.0]}], fields=FieldNames(vector="w"))
    assert stored(index)["e"] == [0.7071, 0.7071]


def test_float64_and_float16_are_converted_batch_by_batch() -> None:
    wide = Index.build(ROWS, vectors=VECTORS.astype(np.float64))
    half = Index.build(ROWS, vectors=VECTORS.astype(np.float16))
    assert stored(wide) == stored(half)
    index = Index.build(ROWS, vectors=VECTORS * 1e4, metric="dot", dtype="float16")
    assert stored(index)["c"] == [30000, 40000]
    with pytest.raises(CorpusError, match=r"rows:3: .* too large for float16"):
        Index.build(ROWS, vectors=VECTORS * 2e4, metric="dot", dtype="float16")


GOOD = st.sampled_from([(1.0, 0.0), (0.0, 1.0), (0.6, 0.8)])
BAD = st.sampled_from([(0.0, 0.0), (math.nan, 1.0), (1.0, math.inf)])
INPUT = st.lists(st.tuples(st.sampled_from("abcd "), st.one_of(GOOD, GOOD, BAD)), min_size=1)


def expected_of(
    rows: list[tuple[str, tuple[float, float]]], model: dict[str, tuple[float, float]], mode: str
) -> Mapping[str, int]:
    """Apply rows to a dict as the index should, and count the outcomes."""
    counts = dict.fromkeys(("indexed", "replaced", "duplicate", "rejected"), 0)
    for doc_id, vector in rows:
        if doc_id == " " or not all(map(math.isfinite, vector)) or not any(vector):
            counts["rejected"] += 1
        elif model.get(doc_id) == vector:
            counts["duplicate"] += 1
        elif doc_id in model and mode == "add":
            counts["rejected"] += 1
        else:
            counts["replaced" if doc_id in model else "indexed"] += 1
            model[doc_id] = vector
    return counts


def inputs(rows: list[tuple[str, tuple[float, float]]]) -> tuple[list[Any], NDArray[Any]]:
    return [{"_id": doc_id} for doc_id, _ in rows], np.array([vector for _, vector in rows])


@settings(max_examples=15, deadline=None)
@given(first=INPUT, second=INPUT, mode=st.sampled_from(["add", "upsert"]))
def test_random_rows_give_what_a_dict_gives(first: Any, second: Any, mode: str) -> None:
    model = {"start": (1.0, 0.0)}
    counts = expected_of(first, model, "add")
    rows, vectors = inputs([("start", (1.0, 0.0)), *first])
    index = Index.build(rows, vectors=vectors, on_error="skip")
    build = index.state.manifest.build
    assert build is not None
    assert build.counts == RowCounts(**counts) + RowCounts(indexed=1)
    counts = expected_of(second, model, mode)
    rows, vectors = inputs(second)
    update = index.add if mode == "add" else index.upsert
    assert update(rows, vectors=vectors, on_error="skip").counts == RowCounts(**counts)
    assert stored(index) == {doc_id: [round(x, 4) for x in v] for doc_id, v in model.items()}


@pytest.mark.thorough
def test_a_build_killed_at_any_step_ends_with_the_same_bytes(tmp_path: Path) -> None:
    rows = [{"_id": i, "text": "word " * (i % 3)} for i in range(2500)]
    vectors = np.random.default_rng(0).normal(size=(2500, 3))
    vectors[[7, 1500]] = np.nan
    skip = BuildSettings(on_error="skip")

    def build(name: str) -> None:
        build_index(rows, tmp_path / name, None, skip, vectors=RowVectors(vectors))

    build("whole")
    for killed_at in (12, 30, 45, 60):
        with use_disk(FaultDisk(killed_at, "kill")), pytest.raises(Killed):
            build("killed")
    build("killed")
    whole, killed = (Index.open(tmp_path / name).state for name in ("whole", "killed"))
    assert list(whole.iter_documents()) == list(killed.iter_documents())
    assert np.array_equal(whole.vectors(whole.live_rows()), killed.vectors(killed.live_rows()))
    assert whole.manifest.build == killed.manifest.build
    rejects = [(tmp_path / f"{name}.rejects.jsonl").read_text() for name in ("whole", "killed")]
    assert rejects[0] == rejects[1]
    assert rejects[0].count("\n") == 2
