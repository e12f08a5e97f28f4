"""Random programs of updates of an index with several FAISS files, against brute force."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.index import settings as spec
from sbert_search.index.settings import IndexSpec, LexicalSettings
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, Metric, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import merge_policy
from sbert_search.index.upkeep.check import check
from sbert_search.records import Document
from tests.faults import FULL
from tests.index.batches import make_batch

PROGRAMS = 200 if FULL else 1  # of each kind
EXACT = ["IVF8,Flat"]  # all lists are searched
CODES = ["IVF8,SQ8", "IVF8,PQ8x4", "IVF8,PQ8x4fs", "IVF8,RaBitQ", "HNSW8", "HNSW8,SQ8", "RaBitQ"]
DIM, YEARS = 16, 20


@pytest.mark.thorough
@pytest.mark.parametrize("factory", EXACT + CODES)
def test_tiers_lose_and_mix_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str
) -> None:
    for module in (merge_policy, spec):
        monkeypatch.setattr(module, "MIN_ANN_ROWS", 300)
    monkeypatch.setattr(merge_policy, "SEGMENT_ROWS", 1500)
    n_faiss_files = 0
    for seed in range(PROGRAMS):
        rng = np.random.default_rng(seed)
        for metric in get_args(Metric):
            settings = VectorSettings(
                dim=DIM,
                metric=metric,
                dtype=rng.choice(["float32", "float16"]),
                spec=IndexSpec(factory=factory, nprobe=8, ef_search=1000),
            )
            empty = Manifest.new(settings, {"year": "int64"}, lexical=LexicalSettings())
            store = IndexStore.create(tmp_path / f"{seed}_{metric}", empty)
            model: dict[int, NDArray[np.float32]] = {}
            update(store, model, rng, range(900))
            for _ in range(10):
                change(store, model, rng)
                compare(store.snapshot, model, rng, exact=factory in EXACT)
                assert check(store.path).problems == ()
                n_faiss_files = max(n_faiss_files, len(store.snapshot.manifest.faiss_files))
    assert n_faiss_files > 1


def update(
    store: IndexStore,
    model: dict[int, NDArray[np.float32]],
    rng: np.random.Generator,
    numbers: range | NDArray[np.int64],
) -> None:
    centres = np.random.default_rng(0).normal(size=(12, DIM))
    near = centres[rng.integers(12, size=len(numbers))]
    vectors = (near + rng.normal(size=near.shape) / 3).astype(np.float32)
    documents = [Document(f"d{i}", f"text {i}", metadata={"year": int(i) % YEARS}) for i in numbers]
    with store.writer() as writer:
        writer.commit(make_batch(documents, vectors))
        writer.settle()
    model.update(zip(map(int, numbers), vectors, strict=True))


def change(
    store: IndexStore, model: dict[int, NDArray[np.float32]], rng: np.random.Generator
) -> None:
    known = np.array(sorted(model))
    some = rng.choice(known, min(len(known), int(rng.choice([1, 30, 150]))), replace=False)
    kind = rng.choice(["add", "replace", "delete", "compact"], p=[0.5, 0.2, 0.25, 0.05])
    if kind == "add":
        update(store, model, rng, known.max() + 1 + np.arange(rng.choice([1, 20, 100, 400])))
    elif kind == "replace":
        update(store, model, rng, some)
    else:
        with store.writer() as writer:
            if kind == "delete":
                writer.delete([f"d{i}" for i in some])
                for number in some:
                    del model[int(number)]
                writer.settle()
            else:
                writer.compact(retrain=bool(rng.integers(2)))


def compare(
    snapshot: Snapshot,
    model: dict[int, NDArray[np.float32]],
    rng: np.random.Generator,
    *,
    exact: bool,
) -> None:
    """Each query gets k live rows with their own scores, the best ones if the kind is exact."""
    numbers, vectors = np.array(sorted(model)), np.stack([model[i] for i in sorted(model)])
    queries = vectors[rng.integers(len(vectors), size=5)] + np.float32(0.1)
    settings, k = snapshot.settings, int(rng.choice([1, 10, len(model) + 3]))
    if settings.metric == "cosine":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    stored = vectors.astype(settings.dtype).astype(np.float32)
    if settings.metric == "euclidean":
        expected = -np.linalg.norm(queries[:, None] - stored[None], axis=2)
    else:
        unit = np.linalg.norm(queries, axis=1, keepdims=True) if settings.metric == "cosine" else 1
        expected = queries / unit @ stored.T
    for below in (None, 15, 1):
        mask = None if below is None else snapshot.filter_mask(f"year < {below}")
        allowed = numbers % YEARS < (YEARS if below is None else below)
        scores, rows = snapshot.search(queries, k, mask)
        n = min(k, int(allowed.sum()))
        assert (rows[:, :n] >= 0).all()
        assert (rows[:, n:] == -1).all()
        found = [[int(p.document.doc_id[1:]) for p in snapshot.fetch(row[:n])] for row in rows]
        at = np.searchsorted(numbers, found)
        assert all(len(set(row)) == n for row in found)
        assert np.isin(found, numbers[allowed]).all()
        own = np.take_along_axis(expected, at, axis=1)
        assert np.allclose(own, scores[:, :n], rtol=2e-3, atol=2e-3)
        if exact:
            best = -np.sort(-expected[:, allowed], axis=1)[:, :n]
            assert np.allclose(best, scores[:, :n], rtol=2e-3, atol=2e-3)
        if mask is None:  # a filter is planned by the number of queries
            alone = [snapshot.search(queries[i : i + 1], k) for i in range(len(queries))]
            assert np.array_equal(rows, np.concatenate([row for _, row in alone]))
            assert np.array_equal(scores, np.concatenate([score for score, _ in alone]))
