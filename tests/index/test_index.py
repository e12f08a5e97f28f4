"""An index as its user holds it: what it sees of the changes that others make."""

from __future__ import annotations

import dataclasses
import gc
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.arguments import CheckedOptions, EmbedderOptions
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.pipeline import embed_batches
from sbert_search.errors import (
    ConfigError,
    CorpusError,
    IndexStoreError,
    ModelError,
    ModelMismatch,
    QueryError,
    UnfinishedBuild,
)
from sbert_search.index.building.build import BuildKeywords, BuildSettings
from sbert_search.index.building.settings import ReadKeywords, ReadSettings
from sbert_search.index.documents import DocIds
from sbert_search.index.index import Index
from sbert_search.index.storage import transaction
from sbert_search.index.writer import IndexWriter
from sbert_search.records import Document
from sbert_search.search.engine import SearchEngine
from sbert_search.text.documents import FieldNames
from tests.search.corpus import small_index, write_jsonl


def test_refresh_moves_to_what_others_have_committed(tmp_path: Path) -> None:
    index = small_index(tmp_path)
    assert not index.refresh()
    other = Index.open(index.path)
    more = write_jsonl(tmp_path / "more.jsonl", [{"_id": "new", "text": "a new one"}])
    other.add(more, model=HashingEmbedder())
    assert (len(index), len(other)) == (5, 6)
    state = index.state
    assert index.refresh()
    assert (len(index), state.n_docs) == (6, 5)
    assert not index.refresh()
    assert not other.refresh()


def test_refresh_does_not_move_to_an_index_of_another_model(tmp_path: Path) -> None:
    index = small_index(tmp_path)
    (tmp_path / "other").mkdir()
    other = small_index(tmp_path / "other", embedder=HashingEmbedder(max_len=32))
    shutil.rmtree(index.path)
    shutil.copytree(other.path, index.path)
    for _ in range(2):
        with pytest.raises(IndexStoreError, match="now holds another index: its model differs"):
            index.refresh()
    assert index.identity.max_len == HashingEmbedder().max_len


@pytest.mark.parametrize("n_shards", [None, 4])
def test_no_change_moves_to_an_index_of_another_model(n_shards: int | None, tmp_path: Path) -> None:
    path = tmp_path / "i"
    index = Index.build(
        [{"_id": "old", "text": "tides"}], out=path, model="hashing:8", n_shards=n_shards
    )
    shutil.rmtree(path)
    vectors = np.eye(3, 8, dtype=np.float32)
    Index.build(
        [{"_id": f"new{n}", "text": "dunes"} for n in range(3)],
        out=path,
        vectors=vectors,
        n_shards=n_shards,
    )
    changes: list[Callable[[], object]] = [
        index.compact,
        partial(index.delete, "new0"),
        partial(index.add, [{"_id": "more", "text": "tides"}]),
        partial(index.backup, tmp_path / "copy"),
    ]
    for change in changes:
        with pytest.raises(IndexStoreError, match="now holds another index: its model differs"):
            change()
    assert [hit.doc_id for hit in SearchEngine(index).search("tides")] == ["old"]
    assert len(Index.open(path)) == 3
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("n_shards", [None, 4])
def test_a_refresh_does_not_move_back_from_a_change_of_another_thread(
    n_shards: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.build(
        [{"_id": "a", "text": "a"}], out=tmp_path / "i", model="hashing", n_shards=n_shards
    )
    Index.open(index.path).add([{"_id": "b", "text": "b"}])
    newest, late = index.store.newest, [{"_id": "c", "text": "c"}]

    def opened() -> object:
        found = newest()
        if late:  # what another thread does between the reading of the state and the move to it
            index.add([late.pop()])
        return found

    monkeypatch.setattr(index.store, "newest", opened)
    assert index.refresh()
    assert {document.doc_id for document in index} == {"a", "b", "c"}


@pytest.mark.parametrize("n_shards", [None, 4])
def test_a_writer_builds_on_the_state_that_it_opened_under_its_lock(
    n_shards: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.build(
        [{"_id": "a", "text": "a"}], out=tmp_path / "i", model="hashing", n_shards=n_shards
    )
    Index.open(index.path).add([{"_id": "b", "text": "b"}])
    old, require_files = index.state, transaction.require_files

    def moved_back(*arguments: Any) -> None:
        require_files(*arguments)
        monkeypatch.setattr(index.store, "snapshot", old)

    monkeypatch.setattr(transaction, "require_files", moved_back)
    index.add([{"_id": "c", "text": "c"}])
    assert {document.doc_id for document in Index.open(index.path)} == {"a", "b", "c"}


@pytest.mark.parametrize("n_shards", [None, 4])
def test_refresh_moves_to_a_new_build_when_it_is_finished(
    n_shards: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path, new = tmp_path / "i", [{"_id": "new", "text": "a new one"}]
    Index.build(
        [{"_id": "old", "text": "an old one"}], out=path, model="hashing", n_shards=n_shards
    )
    reader = Index.open(path)
    shutil.rmtree(path)
    with monkeypatch.context() as patch:
        patch.setattr(IndexWriter, "finish_build", stop)
        with pytest.raises(KeyboardInterrupt):
            Index.build(new, out=path, model="hashing", n_shards=n_shards)
    assert "new" in Index.open(path)
    seen: list[object] = []  # by a search in another thread
    with monkeypatch.context() as patch:
        patch.setattr(type(reader.store), "__setattr__", lambda *change: seen.append(change))
        for _ in range(2):
            with pytest.raises(UnfinishedBuild, match="now holds an unfinished build"):
                reader.refresh()
    assert seen == []
    changes: list[Callable[[], object]] = [
        reader.compact,
        partial(reader.delete, "old"),
        partial(reader.add, new),
        partial(reader.backup, tmp_path / "copy"),
    ]
    for change in changes:
        with pytest.raises(UnfinishedBuild):
            change()
    assert [document.doc_id for document in reader] == ["old"]
    Index.build(new, out=path, model="hashing", n_shards=n_shards)
    assert reader.refresh()
    assert [document.doc_id for document in reader] == ["new"]


@pytest.mark.parametrize(
    ("ids", "left"),
    [
        ("12", {"1", "2", "3"}),
        (12, {"1", "2", "3"}),
        (np.int64(3), {"1", "2", "12"}),
        ([3, "1"], {"2", "12"}),
        (iter(["1", "absent", "1"]), {"2", "3", "12"}),
        ([], {"1", "2", "3", "12"}),
    ],
)
def test_delete_takes_one_id_or_several(tmp_path: Path, ids: DocIds, left: set[str]) -> None:
    index = numbered(tmp_path)
    assert index.delete(ids) == 4 - len(left)
    assert {doc.doc_id for doc in index} == left


@pytest.mark.parametrize("ids", [[b"1"], [1.0], [None], [True], True, [["1"]]])
def test_delete_refuses_what_is_no_id(tmp_path: Path, ids: Any) -> None:
    index = numbered(tmp_path)
    with pytest.raises(QueryError, match="is not an id; ids are texts or integers"):
        index.delete(ids)
    assert len(index) == 4


def test_an_empty_index_has_no_chunk_size_that_its_model_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"chunk_tokens is 9, but .* reads 8 tokens"):
        Index.create(tmp_path / "i", model=HashingEmbedder(max_len=8), chunk_tokens=9)
    assert not (tmp_path / "i").exists()


def test_a_runner_has_nothing_to_do_with_given_vectors(tmp_path: Path) -> None:
    rows = [{"_id": "1", "text": "a"}]
    with pytest.raises(ConfigError, match="runner embeds texts, but vectors are given"):
        Index.build(
            rows, out=tmp_path / "i", vectors=np.ones((1, 4), np.float32), runner=embed_batches
        )


def test_fields_of_the_settings_are_keywords(tmp_path: Path) -> None:
    source = tmp_path / "docs.jsonl"
    source.write_text('{"_id": "1", "text": "a"}\n{"_id": "2", "text": 7}\n')
    settings = BuildSettings(metric="dot", on_error="stop")
    index = Index.build(
        source, out=tmp_path / "i", model="hashing", settings=settings, on_error="skip"
    )
    assert (len(index), index.state.settings.metric) == (1, "dot")
    source.write_text('{"_id": "3", "body": "b"}\n{"_id": "4", "body": 7}\n')
    fields = FieldNames(text="body")
    assert index.upsert(source, fields=fields, on_error="skip").counts.indexed == 1
    with pytest.raises(CorpusError, match="'body' is of type int"):
        index.add(source, fields=fields)


def test_keywords_that_have_no_effect_are_refused(tmp_path: Path) -> None:
    source, out = tmp_path / "docs.jsonl", tmp_path / "i"
    source.write_text('{"_id": "1", "text": "a"}\n')
    options: dict[str, Any] = {"metrik": "dot"}
    with pytest.raises(TypeError, match="Unknown keyword 'metrik'; did you mean 'metric'"):
        Index.build(source, out=out, model="hashing", **options)
    with pytest.raises(ConfigError, match="device: the model is open already"):
        Index.build(source, out=out, model=HashingEmbedder(), device="cpu")
    with pytest.raises(ConfigError, match="'hashing' does not support engine = 'onnx'"):
        Index.build(source, out=out, model="hashing", engine="onnx")
    assert not out.exists()
    index = Index.build(source, out=out, model="hashing", device="cpu")
    with pytest.raises(TypeError, match="Unknown keyword 'metrik'"):
        index.add(source, **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"metric": "dott"}, "Unknown value 'metric = dott'; did you mean 'dot'"),
        ({"on_truncate": "chnk"}, "did you mean 'chunk'"),
        ({"on_error": None}, "Unknown value 'on_error = None'"),
        ({"dtype": "float64"}, "Unknown value 'dtype = float64'"),
        ({"spec": "Flat"}, "spec is 'Flat'; it must be of type IndexSpec"),
        ({"fields": {"id": 3}}, "fields"),
    ],
)
def test_settings_are_checked_when_they_are_made(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        BuildSettings(**wrong)
    with pytest.raises(ConfigError, match=message):
        Index.build("no such file", out=tmp_path / "i", model="hashing", **wrong)
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize(
    ("settings", "keywords", "options", "of_the_index"),
    [
        (BuildSettings, BuildKeywords, EmbedderOptions, {"predicted_by"}),
        (ReadSettings, ReadKeywords, CheckedOptions, {"predicted_by", "classify", "tag"}),
    ],
)
def test_every_field_of_the_settings_is_a_keyword(
    settings: type, keywords: type, options: type, of_the_index: set[str]
) -> None:
    own = {
        name: getattr(kind, "__forward_arg__", str(kind))
        for name, kind in keywords.__annotations__.items()
        if name not in options.__annotations__
    }
    fields = {field.name: str(field.type) for field in dataclasses.fields(settings)}
    assert of_the_index <= fields.keys()  # the index keeps these; a user does not pass them
    assert own == {name: kind for name, kind in fields.items() if name not in of_the_index}


def numbered(tmp_path: Path) -> Index:
    """An index of the documents 1, 2, 3 and 12."""
    source = tmp_path / "docs.jsonl"
    source.write_text("".join(f'{{"_id": {n}, "text": "word {n}"}}\n' for n in (1, 2, 3, 12)))
    return Index.build(source, out=tmp_path / "index", model="hashing")


@pytest.mark.thorough
def test_an_index_of_texts_lives_with_its_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    index = Index.from_texts(["a river", "a mill"], model="hashing")
    assert [hit.doc_id for hit in SearchEngine(index).search("mill", k=1)] == ["1"]
    folder = index.path
    index.backup(tmp_path / "kept")
    engine = SearchEngine(index)
    del index
    gc.collect()
    assert folder.exists()
    del engine
    gc.collect()
    assert not folder.exists()
    assert len(Index.open(tmp_path / "kept")) == 2
    with pytest.raises(CorpusError, match="blank document"):
        Index.from_texts(["a", " "], model="hashing")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_rows_in_memory_are_added_and_replace(tmp_path: Path) -> None:
    rows = [{"id": f"d{n}", "body": f"word {n}", "n": n} for n in range(2000)]
    fields = FieldNames(text="body")
    index = Index.build(rows, out=tmp_path / "i", model="hashing", fields=fields)
    assert (len(index), index.get("d7")) == (2000, Document("d7", "word 7", "", {"n": 7}, "rows:8"))
    changed = ({**row, "body": "other"} for row in rows[:10])
    report = index.upsert(changed)
    assert (report.counts.replaced, len(index)) == (10, 2000)
    assert index.add([{"id": "new", "body": "x", "n": 1.5}]).counts.indexed == 1
    assert {document.doc_id for document in index.documents("n < 2")} == {"d0", "d1", "new"}


def test_documents_of_an_index_may_be_changed_and_written_back(tmp_path: Path) -> None:
    rows = [{"key": "a", "abstract": "one", "body": "two"}, {"key": "b", "body": "three"}]
    fields = FieldNames(id="key", text=("abstract", "body"))
    index = Index.build(rows, out=tmp_path / "i", model="hashing", fields=fields)
    changed = [dataclasses.replace(document, title="x") for document in index]
    assert index.upsert(changed).counts.replaced == 2
    written = index.get("a")
    assert written is not None
    assert (written.title, written.text, written.metadata) == ("x", "one\n\ntwo", {})
    assert index.read_settings.fields == fields
    assert index.add([{"key": "c", "body": "four"}]).counts.indexed == 1


def test_an_update_without_new_texts_opens_no_model(tmp_path: Path) -> None:
    index = numbered(tmp_path)
    before = index.state.manifest
    for update in (index.add, index.upsert):
        report = update(tmp_path / "docs.jsonl", model="no such model")
        assert (report.counts.read, report.counts.duplicate) == (4, 4)
    assert Index.open(index.path).state.manifest == before
    rows = [{"_id": "1", "text": "word 1"}, {"_id": "new", "text": "new"}]
    with pytest.raises(ModelError, match="no such model"):
        index.add(rows, model="no such model")
    with pytest.raises(ModelMismatch):
        index.add(rows, model=HashingEmbedder(max_len=32))
    assert Index.open(index.path).state.manifest == before


def test_an_update_reports_the_columns_that_it_adds_or_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"_id": "a", "text": "a", "year": 2001}]
    index = Index.build(rows, out=tmp_path / "i", model="hashing")
    index.upsert([{"_id": "b", "text": "b", "year": 2002}])
    assert "column" not in capsys.readouterr().err
    misspelt = {f"n{n}": n for n in range(6)}
    index.upsert([{"_id": "c", "text": "c", "year": 2003.5, "yaer": "x", **misspelt}])
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "New metadata columns: yaer (string; did you mean year?), n0 (int64), n1 (int64), n2 "
        "(int64), n3 (int64) and 2 more.",
        "The metadata column year is float64 from now on, no longer int64.",
    ]
