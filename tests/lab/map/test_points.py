from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.index.index import Index
from sbert_search.lab.map.making import choose_documents, document_vectors
from sbert_search.records import Document
from tests.lab.map.conftest import clustered, rows


def test_all_live_documents_are_chosen_and_deleted_ones_left_out(tmp_path: Path) -> None:
    index = Index.build(rows(12), out=tmp_path / "i", vectors=clustered(12))
    index.delete(ids=["d3", "d7"])
    docs = choose_documents(index.state, 100, seed=0)
    assert index.state.doc_ids(docs) == [f"d{i}" for i in range(12) if i not in (3, 7)]


def test_a_sample_is_seeded_without_repetition_and_ascending(index: Index) -> None:
    one, again, other = (choose_documents(index.state, 40, seed) for seed in (5, 5, 6))
    assert len(set(one.tolist())) == 40
    assert (np.diff(one) > 0).all()
    np.testing.assert_array_equal(one, again)
    assert one.tolist() != other.tolist()


def test_a_document_of_one_passage_has_its_stored_vector(index: Index) -> None:
    docs = choose_documents(index.state, 100, 0)[::3]
    vectors = document_vectors(index.state, docs)
    np.testing.assert_array_equal(vectors, index.state.vectors(docs))


def test_passages_are_averaged_and_the_mean_is_scaled_to_length_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["one two three. four five six. seven eight nine.", "ten.", "alpha beta. gamma delta."]
    index = Index.build(
        [Document(str(i), text) for i, text in enumerate(texts)],
        out=tmp_path / "i",
        model="hashing",
        on_truncate="chunk",
        chunk_tokens=4,
    )
    snapshot = index.state
    assert snapshot.n_rows > snapshot.n_docs
    monkeypatch.setattr("sbert_search.lab.map.making.BLOCK", 2)
    docs = choose_documents(snapshot, 100, 0)
    vectors = document_vectors(snapshot, docs)
    for doc, vector in zip(docs, vectors, strict=True):
        mean = snapshot.vectors(snapshot.rows_of(np.array([doc]))).astype(float).mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
