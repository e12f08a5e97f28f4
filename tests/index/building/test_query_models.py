"""Small models that answer queries in the space of an index's vectors."""

from __future__ import annotations

import random
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer

from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ConfigError, IndexStoreError, ModelError, ModelMismatch
from sbert_search.evaluate import evaluate
from sbert_search.index.building.query_models import compared_hits
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from tests.models.tiny import WORDS, tiny_static

DRAW = random.Random(0)
TEXTS = [" ".join(DRAW.choices(WORDS, k=6)) for _ in range(60)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The folder of an index."""
    return built(tmp_path)


def built(folder: Path, **options: Any) -> Path:
    model = str(tiny_static(folder / "full"))
    Index.from_texts(TEXTS, model=model, out=folder / "i", **options).close()
    return folder / "i"


@pytest.mark.parametrize("n_shards", [None, 2])
def test_a_model_of_the_same_space_answers_queries(tmp_path: Path, n_shards: int | None) -> None:
    rows = [{"_id": str(n), "text": text} for n, text in enumerate(TEXTS)]
    full = str(tiny_static(tmp_path / "full"))
    index = Index.build(rows, model=full, out=tmp_path / "i", n_shards=n_shards)
    fast = tiny_static(tmp_path / "fast", noise=0.3)
    record = index.add_query_model(fast)
    assert 0.9 < record.cosine < 1
    assert record.retention is not None
    assert 0.5 < record.retention < 1
    assert record.measured_on == "passages"
    again = Index.open(tmp_path / "i")
    assert dict(again.query_models) == {"fast": record}
    engine = SearchEngine(again, query_model="fast")
    (hit,) = engine.search(TEXTS[7], k=1, mode="dense")
    assert (hit.doc_id, engine.embedder.identity.name) == ("7", str(fast))
    assert hit.score < 0.999
    assert SearchEngine(again).search(TEXTS[7], k=1, mode="dense")[0].score > 0.999
    measured = evaluate(engine, [{"query": TEXTS[7], "positive": TEXTS[7]}], mode="dense")
    assert measured.main_score == 1.0
    copy = ForkingPickler.loads(ForkingPickler.dumps(engine))
    assert copy.search(TEXTS[7], k=1, mode="dense")[0].score == hit.score
    index.remove_query_model("fast")
    with pytest.raises(ConfigError, match="has no query model 'fast'; it has: none"):
        SearchEngine(index, query_model="fast")


def test_a_model_of_another_space_is_refused(path: Path, tmp_path: Path) -> None:
    index = Index.open(path)
    with pytest.raises(ModelMismatch, match=r"not in the space .* mean cosine of -?0\.\d\d with"):
        index.add_query_model(tiny_static(tmp_path / "other", seed=5))
    with pytest.raises(ModelMismatch, match=r"vectors of 8 dimensions, and .* holds vectors of 16"):
        index.add_query_model(tiny_static(tmp_path / "small", dim=8))
    assert not index.query_models


def test_a_poor_model_of_the_same_space_is_warned_of(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Index.open(path).add_query_model(tiny_static(tmp_path / "fast", noise=0.3))
    assert "finds only" not in capsys.readouterr().err
    record = Index.open(path).add_query_model(tiny_static(tmp_path / "poor", noise=1.5), "poor")
    assert record.retention is not None
    told = f"poor is in the space of the index, but finds only {record.retention:.0%} of the"
    assert told in capsys.readouterr().err


def test_what_cannot_be_measured_or_opened_again_is_refused(path: Path, tmp_path: Path) -> None:
    index, fast = Index.open(path), tiny_static(tmp_path / "fast", noise=0.3)
    with pytest.raises(ConfigError, match="in memory"):
        index.add_query_model(Embedder(fast))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name is 'a/b'"):
        index.add_query_model(fast, "a/b")
    vectors = Embedder(fast).encode(TEXTS[:5])
    few = Index.from_texts(TEXTS[:5], vectors=vectors)  # no model, so no check texts
    with pytest.raises(IndexStoreError, match=r"has 5 different texts .*; 8 are needed"):
        few.add_query_model(fast)


def test_an_index_of_given_vectors_gets_a_model_for_queries(tmp_path: Path) -> None:
    vectors = Embedder(tiny_static(tmp_path / "full")).encode(TEXTS)
    index = Index.from_texts(TEXTS, vectors=vectors)
    index.add_query_model(tiny_static(tmp_path / "fast", noise=0.3))
    assert SearchEngine(index).search(TEXTS[3], k=1).mode == "lexical"
    hits = SearchEngine(index, query_model="fast").search(TEXTS[3], k=1)
    assert (hits[0].doc_id, hits.mode) == ("3", "hybrid")


def test_a_model_whose_files_changed_is_refused(path: Path, tmp_path: Path) -> None:
    index, fast = Index.open(path), tiny_static(tmp_path / "fast", noise=0.3)
    index.add_query_model(fast)
    moved = fast.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match="This is the query model 'fast' of the index"):
        SearchEngine(index, query_model="fast").search("cat")
    assert SearchEngine(index, moved, query_model="fast").search("cat")
    tiny_static(fast, noise=0.31)
    with pytest.raises(ModelMismatch, match=r"'fast' of the index was added as .*weights_sha256"):
        SearchEngine(index, query_model="fast").search("cat")
    index.add_query_model(fast)
    assert SearchEngine(index, query_model="fast").search("cat")
    in_memory = SentenceTransformer(str(tiny_static(tmp_path / "other", seed=3)), device="cpu")
    with pytest.raises(ModelMismatch, match=r"'fast' of the index was added as .*weights_sha256"):
        SearchEngine(index, Embedder(in_memory), query_model="fast")


def test_any_process_finds_a_folder_that_was_named_from_its_parent(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_static(tmp_path / "fast", noise=0.3)
    monkeypatch.chdir(tmp_path)
    Index.open(path).add_query_model("fast")
    monkeypatch.chdir(path)
    assert SearchEngine(path, query_model="fast").search("cat")
    assert Index.open(path).info().query_models["fast"].identity["name"] == str(tmp_path / "fast")


def test_an_open_query_model_goes_on_after_another_gets_its_name(
    path: Path, tmp_path: Path
) -> None:
    index, fast = Index.open(path), tiny_static(tmp_path / "fast", noise=0.3)
    index.add_query_model(fast)
    named = SearchEngine(index, query_model="fast")
    given = SearchEngine(index, Embedder(fast), query_model="fast")
    (before,) = given.search(TEXTS[7], k=1, mode="dense")
    assert named.search(TEXTS[7], k=1, mode="dense")[0].score == before.score
    index.add_query_model(tiny_static(tmp_path / "other", noise=0.1))
    assert named.search(TEXTS[7], k=1, mode="dense")[0].score > before.score
    (after,) = given.search(TEXTS[7], k=1, mode="dense", highlight=True)
    assert after.score == before.score


def test_a_change_of_the_model_sets_the_query_models_aside(path: Path, tmp_path: Path) -> None:
    index = Index.open(path)
    index.add_query_model(tiny_static(tmp_path / "fast", noise=0.3))
    engine = SearchEngine(index, query_model="fast")
    index.add([{"_id": "new", "text": "the red sun"}])
    assert engine.search("cat")
    index.migrate(str(tiny_static(tmp_path / "new", seed=9)))
    assert not index.query_models
    with pytest.raises(ConfigError, match="has no query model 'fast'"):
        engine.search("cat")
    index.roll_back()
    assert list(index.query_models) == ["fast"]
    assert engine.search("cat")
    index.migrate(str(tmp_path / "new"))
    index.drop_unused_vectors()
    assert not index.state.manifest.query_models


def test_each_model_of_an_index_has_its_own_query_model_of_a_name(
    path: Path, tmp_path: Path
) -> None:
    index, fast = Index.open(path), tiny_static(tmp_path / "fast", noise=0.3)
    before = index.add_query_model(fast)
    index.migrate(str(tiny_static(tmp_path / "new", seed=9)))
    after = index.add_query_model(tmp_path / "new")
    index.roll_back()
    assert dict(index.query_models) == {"fast": before}
    index.remove_query_model("fast")
    assert not index.query_models
    index.add_query_model(fast)
    index.migrate(str(tmp_path / "new"))
    assert dict(Index.open(path).query_models) == {"fast": after}
    index.remove_query_model("fast")
    index.roll_back()
    assert dict(index.query_models) == {"fast": before}


def test_a_query_model_of_an_index_without_sets_in_its_keys_is_replaced(
    path: Path, tmp_path: Path
) -> None:
    index, fast = Index.open(path), tiny_static(tmp_path / "fast", noise=0.3)
    record = index.add_query_model(fast)
    with index.store.writer() as writer:
        writer.rewrite(lambda work: replace(work.old, query_models={"fast": record}))
    assert dict(Index.open(path).query_models) == {"fast": record}
    index.add_query_model(fast)
    assert list(index.state.manifest.query_models) == ["v1/fast"]


def test_the_retention_is_not_measured_by_too_few_texts(path: Path, tmp_path: Path) -> None:
    index, fast = Index.open(path), tiny_static(tmp_path / "fast", noise=0.3)
    n_check = len(index.state.settings.self_check.texts)
    index.delete([str(n) for n in range(50 - n_check, 60)])  # 50 texts are left
    assert index.add_query_model(tiny_static(tmp_path / "poor", noise=0.8)).retention not in (1, 0)
    index.delete(["0"])
    assert index.add_query_model(fast).retention is None
    assert Index.open(path).query_models["fast"].retention is None


def test_the_first_hits_are_a_tenth_of_the_texts() -> None:
    assert [compared_hits(n) for n in (2, 49, 50, 99, 100, 5000)] == [0, 0, 5, 9, 10, 10]


def test_vectors_cut_to_fewer_dimensions_are_cut_again(path: Path, tmp_path: Path) -> None:
    wide = tiny_static(tmp_path / "wide", dim=32)
    table = load_file(wide / "model.safetensors")["embedding.weight"]
    table[:, :16] = load_file(tmp_path / "full" / "model.safetensors")["embedding.weight"]
    save_file({"embedding.weight": table}, wide / "model.safetensors")
    Index.open(path).add_query_model(wide, "wide", truncate_dim=16)
    cut = Index.from_texts(TEXTS, model=str(wide), truncate_dim=16, out=tmp_path / "cut")
    cut.add([{"_id": "new", "text": "the red sun"}])
    for engine in (SearchEngine(path, query_model="wide"), SearchEngine(tmp_path / "cut")):
        (hit,) = engine.search(TEXTS[7], k=1, mode="dense")
        assert hit.doc_id == "7"
        assert hit.score == pytest.approx(1)
    tiny_static(tmp_path / "other", dim=32, seed=5)
    with pytest.raises(ModelMismatch, match=r"was built with .* is another model"):
        SearchEngine(tmp_path / "cut", tmp_path / "other").search("cat", mode="dense")
