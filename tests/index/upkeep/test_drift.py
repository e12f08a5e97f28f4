"""`check --drift` sees what updates do to an index, and says what helps."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.index import settings as spec
from sbert_search.index.settings import IndexSpec
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import merge_policy
from sbert_search.index.upkeep.info import K, measure_drift, probe_queries, recall_of
from tests.index.batches import make_batch, some_documents, some_vectors


@pytest.fixture(autouse=True)
def small_ann(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (merge_policy, spec):
        monkeypatch.setattr(module, "MIN_ANN_ROWS", 500, raising=True)


def clustered(n_rows: int, centre: float, seed: int) -> NDArray[np.float32]:
    vectors = some_vectors(n_rows, dim=16, seed=seed)
    vectors[:, 0] += centre
    return vectors


def made(path: Path, factory: str) -> IndexStore:
    settings = VectorSettings(
        dim=16, spec=IndexSpec(factory=factory, nprobe=8, ef_search=100), metric="euclidean"
    )
    store = IndexStore.create(path, Manifest.new(settings))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(1500, "a"), clustered(1500, 0.0, 1)))
        writer.compact()
    return store


def test_a_fresh_index_has_nothing_to_do(tmp_path: Path) -> None:
    report = measure_drift(made(tmp_path / "i", "HNSW16").snapshot)
    assert (report.segments, report.dead_share, report.scanned_share) == (1, 0.0, 0.0)
    assert (report.imbalance, report.probes) == (None, 200)
    assert report.recall is not None
    assert report.recall > 0.95
    assert report.actions == ()


def test_documents_of_another_kind_unbalance_the_lists_until_they_are_trained_anew(
    tmp_path: Path,
) -> None:
    store = made(tmp_path / "i", "IVF16,Flat")
    before = measure_drift(store.snapshot, target=0.5)
    assert before.imbalance is not None
    assert before.imbalance < 2
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(3000, "b"), clustered(3000, 40.0, 2)))
        writer.settle()
        moved = measure_drift(store.snapshot, target=0.5)
        assert moved.imbalance is not None
        assert moved.imbalance > 2.5
        assert "`index compact --retrain`: the inverted lists are " in moved.actions[0]
        writer.compact(retrain=True)
    after = measure_drift(store.snapshot, target=0.5)
    assert after.imbalance is not None
    assert after.imbalance < 2
    assert after.actions == ()


def test_recall_below_the_target_asks_for_tuning(tmp_path: Path) -> None:
    store = made(tmp_path / "i", "IVF16,Flat")
    report = measure_drift(store.snapshot, target=1.0)
    assert report.recall is not None
    assert 0.5 < report.recall < 1
    queries = store.snapshot.vectors(probe_queries(store.snapshot))
    found = store.snapshot.search(queries, K + 1)[1][:, 1:]  # the probe itself comes first
    true = store.snapshot.search(queries, K + 1, exact=True)[1][:, 1:]
    hits = [len(set(a) & set(b)) / K for a, b in zip(found.tolist(), true.tolist(), strict=True)]
    assert report.recall == pytest.approx(np.mean(hits), abs=0.005)
    action = f"`index tune`: recall is {report.recall:.3f}, below the target of 1.0"
    assert report.actions == (action,)


def test_rows_with_equal_vectors_count_as_each_other(tmp_path: Path) -> None:
    settings = VectorSettings(dim=16, spec=IndexSpec(factory="HNSW16"), metric="euclidean")
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings))
    with store.writer() as writer:
        vectors = np.tile(some_vectors(100, dim=16), (8, 1))
        writer.commit(make_batch(some_documents(800), vectors))
        writer.compact()
    queries = store.snapshot.vectors(probe_queries(store.snapshot))
    (found, rows), (best, nearest) = (
        store.snapshot.search(queries, K + 1, exact=exact) for exact in (False, True)
    )
    assert (found == best).all()
    assert (rows != nearest).any()
    assert measure_drift(store.snapshot).recall == 1.0


def test_a_probe_that_is_not_found_does_not_add_a_place(tmp_path: Path) -> None:
    class Missing:
        """Finds the neighbours of a probe at ranks 1 to 9 and 11, but never the probe."""

        def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
            return np.zeros((len(rows), 2), np.float32)

        def search(
            self, queries: NDArray[np.float32], k: int, *, exact: bool = False
        ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
            rows = [0, *range(1, 11)] if exact else [*range(1, 10), 99, 10]
            return -np.array([rows], np.float32), np.array([rows])

    assert recall_of(cast(Snapshot, Missing()), np.array([0])) == 0.9


def test_rows_without_faiss_and_dead_rows_are_counted(tmp_path: Path) -> None:
    store = made(tmp_path / "i", "HNSW16")
    with store.writer() as writer:
        writer.delete([f"a{i}" for i in range(500)])
        writer.commit(make_batch(some_documents(250, "b"), clustered(250, 0.0, 2)))
    report = measure_drift(store.snapshot)
    assert report.dead_share == 500 / 1750
    assert report.scanned_share == pytest.approx(250 / 1250)
    assert report.actions == ("`index compact`: 500 of 1,750 rows are dead",)


def test_an_index_of_one_row_or_none_needs_no_tuning(tmp_path: Path) -> None:
    store = made(tmp_path / "i", "HNSW16")
    with store.writer() as writer:
        writer.delete([f"a{n}" for n in range(1, 1500)])
    alone = measure_drift(store.snapshot)
    assert (alone.probes, alone.recall, alone.scanned_share) == (1, None, 0.0)
    assert not any("tune" in action for action in alone.actions)
    with store.writer() as writer:
        writer.delete(["a0"])
    assert measure_drift(store.snapshot).scanned_share == 0.0


def test_probes_stay_the_same_for_as_long_as_they_live(tmp_path: Path) -> None:
    store = made(tmp_path / "i", "Flat")
    before = set(probe_queries(store.snapshot).tolist())
    gone = sorted(before)[:20]
    with store.writer() as writer:
        writer.delete([f"a{row}" for row in gone])
        writer.compact()
    after = set(probe_queries(store.snapshot).tolist())
    assert before - after == set(gone)
    assert measure_drift(store.snapshot).recall is None


def test_the_lists_of_a_small_file_are_counted_with_those_of_the_others(tmp_path: Path) -> None:
    store = made(tmp_path / "i", "IVF16,Flat")
    before = measure_drift(store.snapshot).imbalance
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(20, "b"), clustered(20, 0.0, 2)))
        writer.settle()
    assert [ann is not None for ann in store.snapshot.anns] == [True, True]
    after = measure_drift(store.snapshot)
    assert after.imbalance == pytest.approx(before, rel=0.05)
    assert after.segments == 2
