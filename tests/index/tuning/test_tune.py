"""Tuning chooses what it measured, keeps its evidence and its budget, and never harms an index."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import numpy as np
import pytest

from sbert_search.base import memory
from sbert_search.errors import ConfigError, IndexLocked, IndexStoreError
from sbert_search.index.dense import faiss_build
from sbert_search.index.index import Index
from sbert_search.index.settings import IndexSpec
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest, Metric, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.tuning.settings import Family, TuneSettings
from sbert_search.index.tuning.sweep import sweep
from sbert_search.index.tuning.tune import COLUMNS, TuneReport, draw, remarks, tables, tune, verdict
from sbert_search.index.upkeep.check import check
from tests.index.batches import make_batch, some_documents
from tests.index.tuning.conftest import DIM, clustered
from tests.limits import memory_limited

SETTINGS = TuneSettings(recall=0.9, n_queries=200, sample_rows=1_500)


def recall_on_new_queries(store: IndexStore) -> float:
    """Compare what the index finds now with an exact scan, for queries that nobody has seen."""
    queries = clustered(200, seed=7)
    rows = store.snapshot.search(queries, 10)[1]
    names = {file.name for file in store.snapshot.manifest.faiss_files}
    exact = Snapshot(store.snapshot.folder, store.snapshot.manifest.without(names)).search(
        queries, 10
    )[1]
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, exact, strict=True)]))


@pytest.mark.usefixtures("two_families")
def test_what_is_chosen_keeps_the_recall_and_the_prediction(store: IndexStore) -> None:
    documents = list(store.snapshot.iter_documents())
    report = tune(store, SETTINGS)
    tuning = report.tuning
    assert tuning is not None
    assert tuning.verified.recall > 0.88
    assert len(report.built) == 2
    for trial in [*report.built, *(family.trials[0] for family in report.measured)]:
        assert trial.size_bytes == pytest.approx(trial.predicted_bytes, rel=0.15)
    opened = IndexStore.open(store.path)
    assert opened.snapshot.manifest.tuning == tuning
    (lost,) = tuning.others
    assert re.match(r"(IVF|HNSW)\S+.*: measured over all rows: recall 0\.\d+ ± ", lost)
    assert opened.snapshot.settings.spec == tuning.verified.spec
    assert all(s.vectors["v1"].ann for s in opened.snapshot.manifest.segments)
    assert recall_on_new_queries(opened) > 0.87
    assert list(opened.snapshot.iter_documents()) == documents
    assert check(store.path).strays == ()
    assert check(store.path).problems == ()
    sample, full = tables(report).values()
    assert (len(sample), len(full)) == (2, 3)
    assert all(len(row) == len(COLUMNS) for row in (*sample, *full))
    assert len({row[0] for row in full}) == 3
    assert full[-1][:2] == ("chosen, on held-out queries", f"{tuning.verified.recall:.3f}")
    assert all("predicted over all rows" in remark for remark in remarks(report))
    plot = "".join(ElementTree.fromstring(draw(report)).itertext())
    assert "{lists}" not in plot
    assert all(measured.family.name in plot for measured in report.measured)
    assert "held-out queries" in verdict(tuning)


@pytest.mark.thorough
@pytest.mark.usefixtures("two_families")
def test_an_index_can_be_tuned_again_and_searched_exactly_again(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(store, SETTINGS)
    monkeypatch.undo()  # so few rows are now scanned
    again = tune(store, SETTINGS)
    assert again.tuning is not None
    assert again.tuning.verified.spec.is_flat
    assert again.tuning.verified.recall == 1.0
    assert [s.vectors["v1"].ann for s in store.snapshot.manifest.segments] == [None, None]
    assert list((store.path / "ann").iterdir()) == []


@pytest.mark.usefixtures("two_families")
def test_a_dry_run_and_an_interrupt_change_nothing(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.snapshot.manifest
    report = tune(store, SETTINGS, dry_run=True)
    assert report.tuning is None
    assert all(candidate.build_s > 0 for candidate in report.outlook)
    write = faiss_build.write
    calls = 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(faiss_build, "write", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        tune(store, SETTINGS)
    assert "is unchanged; the next `index tune` measures again" in stopped.value.__notes__[0]
    assert IndexStore.open(store.path).snapshot.manifest == before
    assert check(store.path).strays == ()


def test_what_another_writes_is_refused_before_anything_is_measured(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbert_search.index.tuning.tune.draw", lambda *_: pytest.fail("it began"))
    with IndexStore.open(store.path).writer(), pytest.raises(IndexLocked):
        tune(store, SETTINGS)


@pytest.mark.usefixtures("two_families")
def test_updates_beside_a_tuning_are_searched_as_it_says(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = IndexStore.open(store.path)

    def sweep_beside_a_writer(*arguments: Any) -> Any:
        with other.writer() as writer:
            writer.delete([f"0-{i}" for i in range(300, 400)])
            writer.commit(make_batch(some_documents(600, "new"), clustered(600, 5)))
            writer.compact()
        return sweep(*arguments)

    monkeypatch.setattr("sbert_search.index.tuning.tune.sweep", sweep_beside_a_writer)
    report = tune(store, SETTINGS)
    assert report.tuning is not None
    assert report.tuning.verified.n_rows == store.snapshot.n_rows == 4_000 - 400 + 600
    assert store.snapshot.lookup(["0-350", "new7"])[0] == -1
    assert store.snapshot.lookup(["new7"])[0] >= 0
    assert recall_on_new_queries(store) > 0.85
    assert check(store.path).problems == ()
    assert check(store.path).strays == ()


@pytest.mark.usefixtures("two_families")
def test_an_index_of_another_metric_in_the_place_of_the_measured_one_is_refused(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep_and_replace(*arguments: Any) -> Any:
        store.path.rename(store.path.with_name("old"))
        settings = dataclasses.replace(store.snapshot.settings, metric="dot")
        with IndexStore.create(
            store.path, Manifest.new(settings, {"year": "int64"})
        ).writer() as writer:
            writer.commit(make_batch(some_documents(600, "new"), clustered(600, 5)))
        return sweep(*arguments)

    monkeypatch.setattr("sbert_search.index.tuning.tune.sweep", sweep_and_replace)
    with pytest.raises(IndexStoreError, match="now holds another index: its metric differs"):
        tune(store, SETTINGS)
    assert IndexStore.open(store.path).snapshot.manifest.tuning is None


@pytest.mark.usefixtures("two_families")
def test_what_the_budget_forbids_is_never_built(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("it was built")

    monkeypatch.setattr(faiss_build, "fill", refuse)
    monkeypatch.setattr(memory, "anonymous_bytes", lambda: 0)
    before = store.snapshot.manifest
    for limit, reason in [
        (60_000, "its files would take"),
        (2_000_000, "building it would take"),
    ]:
        with memory_limited(limit):
            with pytest.raises(IndexStoreError, match="No index with recall"):
                tune(store, SETTINGS)
            report = with_exact_scan(store, SETTINGS, monkeypatch)
        assert all(reason in measured.skipped for measured in report.measured[1:])
        assert reason in remarks(report)[0]
    assert store.snapshot.manifest == before


def with_exact_scan(
    store: IndexStore, settings: TuneSettings, monkeypatch: pytest.MonkeyPatch
) -> TuneReport:
    """Give the tuning the exact scan to fall back on."""
    kinds = [Family("Flat"), Family("IVF{lists},SQ8", (2, 4)), Family("HNSW16")]
    with monkeypatch.context() as patch:
        patch.setattr("sbert_search.index.tuning.tune.families", lambda n_rows, dim: kinds)
        return tune(store, settings, dry_run=True)


@pytest.mark.usefixtures("two_families")
def test_a_latency_or_a_time_that_nothing_keeps_is_refused(store: IndexStore) -> None:
    before = store.snapshot.manifest
    with pytest.raises(IndexStoreError, match=r"a query would take .* ms, and 1e-05 ms are"):
        tune(store, dataclasses.replace(SETTINGS, latency_ms=1e-5))
    with pytest.raises(IndexStoreError, match="The index is unchanged"):
        tune(store, dataclasses.replace(SETTINGS, max_minutes=1e-4))
    assert IndexStore.open(store.path).snapshot.manifest == before


def test_a_finalist_that_fails_over_all_rows_leaves_the_exact_scan(
    store: IndexStore, two_families: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbert_search.index.tuning.trials.fastest", lambda *_: None)
    report = tune(store, SETTINGS)
    assert report.tuning is not None
    assert report.tuning.verified.spec == IndexSpec()
    assert report.tuning.verified.recall == 1.0
    assert check(store.path).strays == ()


@pytest.mark.thorough
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_every_family_works_with_every_metric_and_its_bytes_are_predicted(
    tmp_path: Path, metric: Metric
) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=DIM, metric=metric)))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(3_000), clustered(3_000, seed=0)))
    report = tune(store, dataclasses.replace(SETTINGS, recall=0.8), dry_run=True)
    assert len(report.measured) == 9
    for measured in report.measured:
        assert measured.skipped == ""
        best = max(measured.trials, key=lambda t: t.recall)
        assert best.recall > 0.75, measured.family.pattern
        assert best.size_bytes == pytest.approx(best.predicted_bytes, rel=0.15)


def test_queries_of_the_user_are_split_and_named(store: IndexStore, two_families: None) -> None:
    report = tune(store, SETTINGS, clustered(61, seed=5), origin="queries of q.jsonl")
    assert report.tuning is not None
    assert (report.tuning.n_choosing, report.tuning.n_verifying) == (30, 31)
    assert report.tuning.queries == "queries of q.jsonl"
    with pytest.raises(IndexStoreError, match="There is 1 query; a tuning needs at least 2"):
        tune(store, SETTINGS, clustered(1, seed=5))
    with pytest.raises(IndexStoreError, match="There are no queries; a tuning needs at least 2"):
        tune(store, SETTINGS, clustered(0, seed=5))


def test_an_index_too_small_to_tune_is_searched_exactly(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=DIM)))
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(2), clustered(2, seed=0)))
    message = "has 2 passages; a tuning needs at least 3. Without a tuning, .* exact"
    with pytest.raises(IndexStoreError, match=message):
        tune(store, SETTINGS)


def test_families_that_a_small_sample_cannot_train_are_skipped(store: IndexStore) -> None:
    report = tune(store, dataclasses.replace(SETTINGS, sample_rows=10), dry_run=True)
    skipped = {measured.family.pattern: measured.skipped for measured in report.measured}
    assert skipped["IVF{lists},PQ8x4fs"] == "its training takes 624 rows, and the sample has 10"
    assert skipped["HNSW16,SQ8"] == ""


def test_options_of_a_model_that_embeds_no_queries_are_refused(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", dim=DIM)
    with pytest.raises(ConfigError, match="device, model: no model is opened"):
        index.tune(model="hashing", device="cpu")


def test_the_api_embeds_queries_and_info_shows_the_evidence(tmp_path: Path) -> None:
    corpus, queries = tmp_path / "c.jsonl", tmp_path / "q.jsonl"
    corpus.write_text("".join(f'{{"_id": "{i}", "text": "word{i} and"}}\n' for i in range(40)))
    queries.write_text("".join(f'{{"_id": "{i}", "text": "word{i}"}}\n' for i in range(20)))
    index = Index.build(corpus, out=tmp_path / "i", model="hashing:64")
    report = index.tune(queries=queries)
    tuning = index.info().tuning
    assert tuning is not None
    assert tuning == report.tuning
    assert (tuning.verified.recall, tuning.queries) == (1.0, "queries of q.jsonl")
    manifest: Manifest = Index.open(index.path).state.manifest
    assert manifest.tuning == tuning
