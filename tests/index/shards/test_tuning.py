"""One spec is chosen for all shards, by searches of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.errors import IndexStoreError
from sbert_search.index import settings as spec
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.tuning import settings, sweep
from sbert_search.index.tuning import settings as candidates
from sbert_search.index.tuning.settings import Budget, Family, TuneSettings
from sbert_search.index.tuning.tune import tune
from sbert_search.index.upkeep import merge_policy
from sbert_search.index.upkeep.check import check
from tests.index.batches import make_batch, some_documents
from tests.index.tuning.conftest import DIM, clustered
from tests.limits import memory_limited

N_ROWS = 4_000
SETTINGS = TuneSettings(recall=0.9, n_queries=200, sample_rows=1_500)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IndexStore:
    """Make two shards, for which a few hundred rows count as many."""
    for module in (merge_policy, spec, candidates, settings):
        monkeypatch.setattr(module, "MIN_ANN_ROWS", 500)
    monkeypatch.setattr(sweep, "TINY_BUILD_ROWS", 1_000)
    kinds = [Family("IVF{lists},SQ8", (2, 4)), Family("HNSW16")]
    monkeypatch.setattr("sbert_search.index.tuning.tune.families", lambda n_rows, dim: kinds)
    IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=DIM), {"year": "int64"}), n_shards=2
    )
    store = IndexStore.open(tmp_path / "i")
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(N_ROWS), clustered(N_ROWS, 0)))
    return store


@pytest.mark.thorough
def test_the_best_spec_is_built_in_every_shard(store: IndexStore) -> None:
    report = tune(store, SETTINGS)
    tuning = report.tuning
    assert tuning is not None
    for trial in report.built:
        assert trial.size_bytes == pytest.approx(trial.predicted_bytes, rel=0.15)
    assert tuning.verified.recall >= 0.85
    opened = IndexStore.open(store.path).snapshot
    assert opened.settings.spec == tuning.verified.spec
    assert [shard.manifest.tuning for shard in opened.parts] == [tuning, tuning]
    assert all(ann is not None for ann in opened.anns)
    report_of_check = check(store.path)
    assert (report_of_check.problems, report_of_check.strays) == ((), ())
    queries = clustered(50, 7)
    found, exact = (opened.search(queries, 10, exact=exact)[1] for exact in (False, True))
    recall = np.mean(
        [len({*f} & {*e}) / 10 for f, e in zip(found.tolist(), exact.tolist(), strict=True)]
    )
    assert recall >= 0.85


def test_a_dry_run_changes_nothing(store: IndexStore) -> None:
    before = store.snapshot.shards
    report = tune(store, SETTINGS, dry_run=True)
    assert report.tuning is None
    assert report.outlook
    assert IndexStore.open(store.path).snapshot.shards == before


def test_no_spec_within_the_limits_leaves_the_index(store: IndexStore) -> None:
    before = store.snapshot.shards
    with memory_limited(1 << 12), pytest.raises(IndexStoreError, match="No index with recall"):
        tune(store, SETTINGS)
    assert IndexStore.open(store.path).snapshot.shards == before


def test_the_time_of_the_sample_counts_and_a_second_finalist_needs_time(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def refusal(budget: Budget, seconds: float, share: float = 1.0) -> str:
        started.append(budget.started)
        return "no time is left" if share == 1.0 else ""  # share 1: for the second finalist

    def sweep_beside_a_writer(*arguments: Any) -> Any:
        other = IndexStore.open(store.path)
        with other.writer() as writer:
            writer.delete([f"d{i}" for i in range(300, 400)])
            writer.commit(make_batch(some_documents(600, "new"), clustered(600, 5)))
        return sweep.sweep(*arguments)

    monkeypatch.setattr(Budget, "time_refusal", refusal)
    monkeypatch.setattr("sbert_search.index.tuning.tune.sweep", sweep_beside_a_writer)
    report = tune(store, SETTINGS)
    assert len(set(started)) == 1
    assert len(report.built) == 1
    assert report.tuning is not None
    assert report.tuning.verified.n_rows == store.snapshot.n_rows
    assert store.snapshot.n_rows == N_ROWS - 100 + 600
    assert check(store.path).problems == ()


def test_an_index_of_another_metric_in_the_place_of_the_measured_one_is_refused(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep_and_replace(*arguments: Any) -> Any:
        store.path.rename(store.path.with_name("old"))
        IndexStore.create(
            store.path,
            Manifest.new(VectorSettings(dim=DIM, metric="dot"), {"year": "int64"}),
            n_shards=2,
        )
        with IndexStore.open(store.path).writer() as writer:
            writer.commit(make_batch(some_documents(600, "new"), clustered(600, 5)))
        return sweep.sweep(*arguments)

    monkeypatch.setattr("sbert_search.index.tuning.tune.sweep", sweep_and_replace)
    with pytest.raises(IndexStoreError, match="now holds another index: its metric differs"):
        tune(store, SETTINGS)
    opened = IndexStore.open(store.path).snapshot
    assert [shard.manifest.tuning for shard in opened.parts] == [None, None]
