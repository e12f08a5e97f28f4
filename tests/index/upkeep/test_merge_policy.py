"""An index stays small and fast under updates, and what it finds does not change."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from sbert_search import Index
from sbert_search.base import files
from sbert_search.errors import ConfigError
from sbert_search.index import settings as spec
from sbert_search.index.dense import exact, faiss_build, faiss_runtime
from sbert_search.index.dense.query_plan import Selection
from sbert_search.index.norms import Vectors
from sbert_search.index.settings import IndexSpec
from sbert_search.index.storage import segment_writer
from sbert_search.index.storage.manifest import Manifest, Metric, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import compaction, merge_policy
from sbert_search.index.upkeep.check import check
from tests.index.batches import make_batch, some_documents, some_vectors
from tests.limits import memory_limited


def put(store: IndexStore, n_docs: int, prefix: str, seed: int = 0) -> None:
    """One update of new documents, or of those that have the prefix."""
    with store.writer() as writer:
        vectors = some_vectors(n_docs, seed=seed)
        writer.commit(make_batch(some_documents(n_docs, prefix), vectors))
        writer.settle()


def remove(store: IndexStore, doc_ids: list[str]) -> None:
    with store.writer() as writer:
        writer.delete(doc_ids)
        writer.settle()


def sizes(store: IndexStore) -> list[int]:
    return [segment.n_rows for segment in store.snapshot.manifest.segments]


@pytest.mark.thorough
def test_segments_stay_few_and_a_row_is_seldom_rewritten(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten: list[int] = []
    write = segment_writer.write_segment

    def count(*arguments: object, n_rows: int, **more: object) -> object:
        rewritten.append(n_rows)
        return write(*arguments, n_rows=n_rows, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "write_segment", count)
    store = IndexStore.create(fast_path / "i", Manifest.new(VectorSettings(dim=8)))
    put(store, 500, "base")
    for i in range(100):
        put(store, 10, f"{i}-", seed=i)
        later = np.cumsum(sizes(store)[::-1])[::-1]
        assert len(sizes(store)) <= merge_policy.MAX_SEGMENTS + 8
        assert all(size <= total for size, total in zip(sizes(store), later, strict=True))
    assert sum(sizes(store)) == 1500
    assert sum(rewritten) < 1500 * 4


def test_dead_rows_stay_below_a_fifth_and_rows_keep_their_numbers(fast_path: Path) -> None:
    store = IndexStore.create(
        fast_path / "i", Manifest.new(VectorSettings(dim=8), {"year": "int64"})
    )
    put(store, 300, "d")
    for i in range(40):
        rows = store.snapshot.lookup(["d299", "d250"])
        remove(store, [f"d{i}"])
        put(store, 5, f"d{40 + i}", seed=i + 1)
        for segment in range(len(sizes(store))):
            n_dead = sizes(store)[segment] - store.snapshot.n_live(segment)
            assert n_dead <= merge_policy.MAX_DEAD * sizes(store)[segment]
        assert len(store.snapshot.manifest.tombstones) <= merge_policy.MAX_TOMBSTONES
        assert (store.snapshot.lookup(["d299", "d250"]) == rows).all()
    assert check(store.path).problems == ()
    assert (store.snapshot.lookup([f"d{i}" for i in range(40)]) == -1).all()


def test_tombstones_that_no_segment_is_rewritten_for_are_gathered(fast_path: Path) -> None:
    store = IndexStore.create(fast_path / "i", Manifest.new(VectorSettings(dim=8)))
    put(store, 1000, "d")
    for i in range(merge_policy.MAX_TOMBSTONES + 1):
        remove(store, [f"d{i}"])
    [gathered] = store.snapshot.manifest.tombstones
    assert (gathered.n_rows, gathered.n_docs) == (33, 33)
    assert sizes(store) == [1000]
    assert len(list((store.path / "del").iterdir())) == 1


def test_an_emptied_segment_goes(tmp_path: Path) -> None:
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=8)))
    put(store, 30, "a")
    put(store, 30, "b")
    remove(store, [f"a{i}" for i in range(30)])
    assert sizes(store) == [30]
    remove(store, [f"b{i}" for i in range(30)])
    assert sizes(store) == []


@pytest.fixture
def small_ann(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (merge_policy, spec):
        monkeypatch.setattr(module, "MIN_ANN_ROWS", 500, raising=True)


@pytest.mark.usefixtures("small_ann")
def test_updates_do_not_merge_all_rows_while_there_are_too_few_to_train(tmp_path: Path) -> None:
    settings = VectorSettings(dim=8, spec=IndexSpec(factory="IVF16,Flat"))
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings))
    put(store, 500, "a")
    put(store, 20, "b")
    assert sizes(store) == [500, 20]
    put(store, 104, "c")  # 624 = 16 lists of 39 rows
    assert sizes(store) == [624]
    assert store.snapshot.anns[0] is not None


@pytest.mark.usefixtures("small_ann")
@pytest.mark.parametrize("factory", ["HNSW16", "IVF8,Flat", "HNSW16,SQ8", "RR8,IVF8,SQ8"])
def test_new_rows_get_a_faiss_file_of_their_own_from_the_training_that_is_there(
    tmp_path: Path, factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[int] = []
    fill = faiss_build.fill

    def count(empty: object, vectors: Vectors, *more: object) -> object:
        filled.append(len(vectors))
        return fill(empty, vectors, *more)  # type: ignore[arg-type]

    settings = VectorSettings(dim=8, spec=IndexSpec(factory=factory, nprobe=8, ef_search=200))
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings))
    put(store, 500, "a")
    with store.writer() as writer:
        writer.compact()
    monkeypatch.setattr(faiss_build, "fill", count)
    monkeypatch.setattr(faiss_build, "train", lambda *_: pytest.fail("it is trained already"))
    remove(store, [f"a{i}" for i in range(50)])
    put(store, 4, "b")  # fewer than 1 %: scanned
    assert (sizes(store), filled) == ([500, 4], [])
    put(store, 40, "c", seed=5)
    assert (sizes(store), filled) == ([500, 44], [44])
    _finds_its_own(store, n_files=2)
    put(store, 24, "e", seed=6)  # 44 are fewer than twice as many
    assert (sizes(store), filled) == ([500, 68], [44, 68])
    put(store, 200, "f", seed=7)  # 68 are, and 450 live ones are fewer than twice 268
    assert (sizes(store), filled) == ([718], [44, 68, 718])
    assert (store.snapshot.n_docs, store.snapshot.manifest.n_dead_rows) == (718, 0)
    _finds_its_own(store, n_files=1)
    remove(store, [f"a{i}" for i in range(50, 200)])  # more than a fifth
    assert (sizes(store), filled) == ([568], [44, 68, 718, 568])
    assert check(store.path).problems == ()


def _finds_its_own(store: IndexStore, n_files: int) -> None:
    """Every new vector finds itself, through FAISS and reopened, and no dead row is found."""
    found = IndexStore.open(store.path)
    assert [one is not None for one in found.snapshot.anns] == [True] * n_files
    docs = found.snapshot.lookup([f"c{i}" for i in range(40)])
    rows = found.snapshot.search(some_vectors(40, seed=5), 3)[1]
    assert (rows[:, 0] == docs).mean() > 0.9
    live = set(found.snapshot.lookup([doc.doc_id for doc in found.snapshot.iter_documents()]))
    assert set(rows.ravel().tolist()) <= live


@pytest.mark.thorough
@pytest.mark.usefixtures("small_ann")
def test_rows_with_faiss_files_are_seldom_written_under_many_updates(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = segment_writer.write_segment

    def count(*arguments: object, n_rows: int, **more: object) -> object:
        written.append(n_rows)
        return write(*arguments, n_rows=n_rows, **more)  # type: ignore[arg-type]

    store = IndexStore.create(
        fast_path / "i", Manifest.new(VectorSettings(dim=8, spec=IndexSpec(factory="SQ8")))
    )
    put(store, 1000, "base")
    monkeypatch.setattr(compaction, "write_segment", count)
    oldest = 0
    for i in range(100):
        put(store, 20, f"{i}-", seed=i)
        gone = [f"base{n}" for n in range(oldest, oldest + 9)]
        remove(store, gone)
        oldest += 9
        records = store.snapshot.manifest.segments
        scanned = [r.n_rows for r in records if r.vectors["v1"].ann is None]
        assert sum(scanned) <= merge_policy.MAX_SCANNED * sum(sizes(store))
        assert len(records) <= 7
        for segment, size in enumerate(sizes(store)):
            assert size - store.snapshot.n_live(segment) <= merge_policy.MAX_DEAD * size
    assert store.snapshot.n_rows == 1000 + 100 * 11
    assert sum(written) < 100 * 20 * 9


@pytest.mark.usefixtures("small_ann")
def test_an_index_that_outgrows_the_exact_scan_gets_its_first_faiss_file(tmp_path: Path) -> None:
    store = IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=8, spec=IndexSpec(factory="SQ8")))
    )
    for i in range(6):
        put(store, 90, f"{i}-", seed=i)
    assert sizes(store) == [540]
    assert store.snapshot.anns[0] is not None


@pytest.mark.usefixtures("small_ann")
def test_a_budget_that_faiss_does_not_fit_leaves_the_update_as_it_is(tmp_path: Path) -> None:
    store = IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=8, spec=IndexSpec(factory="SQ8")))
    )
    put(store, 600, "a")
    with store.writer() as writer:
        writer.compact()
        writer.commit(make_batch(some_documents(100, "b"), some_vectors(100)))
        with memory_limited(1), pytest.raises(ConfigError, match="set_memory_limit"):
            writer.settle()
        assert sizes(store) == [600, 100]
        assert writer.settle()
    assert (sizes(store), len(store.snapshot.manifest.faiss_files)) == ([600, 100], 2)
    assert check(store.path).problems == ()


@pytest.mark.usefixtures("small_ann")
def test_retraining_makes_every_faiss_file_again(tmp_path: Path) -> None:
    settings = VectorSettings(dim=8, spec=IndexSpec(factory="IVF8,Flat"))
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings))
    put(store, 600, "a")
    centroids = []
    with store.writer() as writer:
        writer.compact()
        centroids.append(_centroids(store))
        writer.commit(make_batch(some_documents(600, "far"), some_vectors(600) + 9))
        writer.compact()
        centroids.append(_centroids(store))
        writer.compact(retrain=True)
        centroids.append(_centroids(store))
    assert (centroids[0] == centroids[1]).all()
    assert not np.allclose(centroids[1], centroids[2])
    assert len(list((store.path / "ann").iterdir())) == 1


def _centroids(store: IndexStore) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    faiss = faiss_runtime.import_faiss()
    [found] = store.snapshot.anns
    assert found is not None
    copy = found.read(mapped=False)
    index = faiss.downcast_index(copy)
    centroids: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    centroids = index.quantizer.reconstruct_n(0, index.nlist)
    return centroids


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("share", [0.02, 0.6, 0.97])
@pytest.mark.parametrize("n_queries", [1, 4, 20])
def test_a_mask_is_the_same_read_in_order_or_picked(
    metric: Metric, share: float, n_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, queries = some_vectors(3000), some_vectors(n_queries, seed=1)
    wanted = np.random.default_rng(3).random(3000) < share
    answers = []
    for dense in (0.0, 1.0):
        monkeypatch.setattr(exact, "DENSE", dense)
        monkeypatch.setattr(exact, "DENSE_SINGLE", dense)
        monkeypatch.setattr(exact, "BLOCK_SCORES", 100 * n_queries)
        top = exact.TopK.empty(n_queries, 100)
        norm = float(np.linalg.norm(vectors, axis=1).max())
        marks = Selection(wanted)
        rows = np.arange(3000)
        exact.scan(queries, vectors, top, rows, metric=metric, max_norm=norm, selection=marks)
        answers.append(top)
    assert (answers[0].rows == answers[1].rows).all()
    assert (answers[0].scores == answers[1].scores).all()
    assert wanted[answers[0].rows[answers[0].rows >= 0]].all()


class FullForMerges(files.Disk):
    """A disk that takes no file above a size."""

    def write(self, fd: int, data: memoryview) -> int:
        if os.fstat(fd).st_size + len(data) > 8_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data)


def test_an_update_stands_when_tidying_up_after_it_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "c.jsonl"
    source.write_text("".join(f'{{"_id": "d{i}", "text": "text {i}"}}\n' for i in range(60)))
    index = Index.build(source, out=tmp_path / "i", model="hashing:64")
    with files.use_disk(FullForMerges()):
        assert index.delete([f"d{i}" for i in range(20)]) == 20
    assert (
        "The update is committed, but merging segments after it failed: " in capsys.readouterr().err
    )
    assert len(Index.open(tmp_path / "i")) == 40
    assert index.delete(["d30"]) == 1
    assert Index.open(tmp_path / "i").info().dead_rows == 0


@pytest.mark.usefixtures("small_ann")
@pytest.mark.parametrize("n_commits", [5, 6, 7, 8])
def test_an_update_ends_with_a_faiss_file_whichever_commit_merged(
    tmp_path: Path, n_commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_policy, "MIN_REMOVED", 5)
    settings = VectorSettings(dim=8, spec=IndexSpec(factory="HNSW8"))
    store = IndexStore.create(tmp_path / "i", Manifest.new(settings))
    with store.writer() as writer:
        for n in range(n_commits):
            writer.commit(make_batch(some_documents(100, f"{n}-"), some_vectors(100, seed=n)))
        writer.settle()
        assert [
            (segment.n_rows, segment.vectors["v1"].ann is not None)
            for segment in store.snapshot.manifest.segments
        ] == [(100 * n_commits, True)]
        assert not writer.settle()
