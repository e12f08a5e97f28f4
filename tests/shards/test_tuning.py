"""One spec is chosen for all shards, by searches of all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.errors import IndexStoreError
from sbert_search.index import spec
from sbert_search.index.maintenance import compaction, merge_policy
from sbert_search.index.storage.manifest import StoreSettings
from sbert_search.index.tuning import candidates, settings, sweep
from sbert_search.index.tuning.candidates import Family
from sbert_search.index.tuning.settings import TuneSettings
from sbert_search.shards.check import check_shards
from sbert_search.shards.store import ShardedStore, ShardedStores
from sbert_search.shards.tuning import tune_shards
from tests.index.batches import make_batch, some_documents
from tests.index.tuning.conftest import DIM, clustered

N_ROWS = 4_000


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardedStore:
    """Make two shards, for which a few hundred rows count as many."""
    for module in (compaction, merge_policy, spec, candidates, settings):
        monkeypatch.setattr(module, "MIN_ANN_ROWS", 500)
    monkeypatch.setattr(sweep, "TINY_BUILD_ROWS", 1_000)
    kinds = [Family("IVF{lists},SQ8", (2, 4)), Family("HNSW16")]
    monkeypatch.setattr("sbert_search.index.tuning.tune.families", lambda n_rows, dim: kinds)
    ShardedStores(2).create(tmp_path / "i", StoreSettings(dim=DIM), {"year": "int64"})
    store = ShardedStore.open(tmp_path / "i")
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(N_ROWS), clustered(N_ROWS, 0)))
    return store


def test_the_best_spec_is_built_in_every_shard(store: ShardedStore) -> None:
    report = tune_shards(store, TuneSettings(recall=0.9, max_minutes=1))
    tuning = report.tuning
    assert tuning is not None
    assert tuning.verified.recall >= 0.85
    opened = ShardedStore.open(store.path).snapshot
    assert opened.settings.spec == tuning.verified.spec
    assert [shard.manifest.tuning for shard in opened.shards] == [tuning, tuning]
    assert all(ann is not None for ann in opened.anns)
    report_of_check = check_shards(store.path)
    assert (report_of_check.problems, report_of_check.strays) == ((), ())
    queries = clustered(50, 7)
    found, exact = (opened.search(queries, 10, exact=exact)[1] for exact in (False, True))
    recall = np.mean(
        [len({*f} & {*e}) / 10 for f, e in zip(found.tolist(), exact.tolist(), strict=True)]
    )
    assert recall >= 0.85


def test_a_dry_run_changes_nothing(store: ShardedStore) -> None:
    before = store.snapshot.record
    report = tune_shards(store, TuneSettings(recall=0.9, max_minutes=1), dry_run=True)
    assert report.tuning is None
    assert report.outlook
    assert ShardedStore.open(store.path).snapshot.record == before


def test_no_spec_within_the_limits_leaves_the_index(store: ShardedStore) -> None:
    before = store.snapshot.record
    with pytest.raises(IndexStoreError, match="No index with recall"):
        tune_shards(store, TuneSettings(recall=0.9, max_minutes=1, memory_bytes=1 << 12))
    assert ShardedStore.open(store.path).snapshot.record == before
