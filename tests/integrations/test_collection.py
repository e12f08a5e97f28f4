"""The index behind the stores of frameworks keeps the promises of an index."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sbert_search.errors import CorpusError, IndexStoreError, ModelMismatch, QueryError
from sbert_search.index.index import Index
from sbert_search.index.writer import IndexWriter
from sbert_search.integrations.collection import Collection
from sbert_search.integrations.records import Record
from sbert_search.records import RowCounts
from sbert_search.search.options import SearchOptions

DENSE = SearchOptions(k=3, mode="dense")


def _records(*texts: str) -> list[Record]:
    return [Record(str(n), text, {"n": n}) for n, text in enumerate(texts)]


def test_rows_are_counted(tmp_path: Path) -> None:
    collection = Collection(tmp_path / "i", "hashing")
    assert collection.write(_records("a", "b")) == RowCounts(indexed=2)
    assert collection.write(_records("a", "c", "d")) == RowCounts(
        indexed=1, replaced=1, duplicate=1
    )
    assert collection.written == RowCounts(indexed=3, replaced=1, duplicate=1)
    assert collection.write([]) == RowCounts()
    with pytest.raises(CorpusError):
        collection.write(_records("other"), mode="add")


def test_another_model_is_refused(tmp_path: Path) -> None:
    Collection(tmp_path / "i", "hashing").write(_records("a"))
    with pytest.raises(ModelMismatch, match="dim"):
        Collection(tmp_path / "i", "hashing:8").write(_records("b"))
    assert len(Collection(tmp_path / "i")) == 1


def test_given_vectors_need_no_model_and_have_one_dimension(tmp_path: Path) -> None:
    collection = Collection(tmp_path / "i")
    assert (collection.index, collection.dim, len(collection), collection.columns) == (
        None, None, 0, {},
    )  # fmt: skip
    assert collection.documents() == collection.get(["1"]) == []
    assert collection.delete(["1"]) == collection.count("n > 1") == 0
    assert collection.search(np.ones(2), DENSE) == []
    assert collection.example() is None
    collection.write(_records("a", ""), np.eye(2))
    assert collection.dim == 2
    hits = collection.search(np.array([0.1, 1.0]), DENSE)
    assert [hit.doc_id for hit in hits] == ["1", "0"]
    with pytest.raises(CorpusError):
        collection.write(_records("a"), np.ones((1, 3)))
    with pytest.raises(ModelMismatch, match="without a model"):
        collection.write([Record("7", "text", {})])


def test_a_blank_text_gets_the_vector_of_the_model() -> None:
    collection = Collection(model="hashing")
    collection.write([Record("1", " ", {"n": 1}), Record("2", "tides", {})])
    assert collection.count() == 2
    assert collection.search("tides", DENSE)[0].doc_id == "2"


def test_a_blank_text_does_not_change_how_others_are_split() -> None:
    long = "the tides of the sea " * 400
    collection = Collection(model="hashing")
    collection.write([Record("1", long, {}), Record("2", "", {})])
    alone = Collection(model="hashing")
    alone.write([Record("1", long, {})])
    assert alone.index is not None
    assert collection.index is not None
    assert collection.index.state.n_rows == alone.index.state.n_rows + 1 > 2
    assert collection.write([Record("1", long, {})]) == RowCounts(duplicate=1)


@pytest.mark.parametrize("texts", [("", "tides", "dunes", ""), ("", "tides"), ("tides", "")])
def test_of_records_with_one_id_the_last_is_kept(texts: tuple[str, ...]) -> None:
    collection = Collection(model="hashing")
    counts = collection.write([Record("1", text, {}) for text in texts])
    assert counts.read == len(texts)
    assert [record.text for record in collection.get(["1"])] == [texts[-1]]


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(IndexStoreError):
        Collection(tmp_path, "hashing")
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_commits_of_other_objects_are_seen(tmp_path: Path) -> None:
    first = Collection(tmp_path / "i")
    second = Collection(tmp_path / "i", "hashing")
    second.write(_records("tides", "dunes"))
    assert len(first) == 2
    assert first.search("dunes", DENSE)[0].doc_id == "1"
    assert second.delete(["1"]) == 1
    assert first.get(["0", "1"]) == [Record("0", "tides", {"n": 0})]
    assert first.delete(where="n = 0") == 1
    assert list(second.iter_hits(["tides"], DENSE)) == [[]]


def test_documents_are_read_while_another_index_is_built_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    collection = Collection(tmp_path / "i", "hashing")
    collection.write(_records("tides"))
    shutil.rmtree(tmp_path / "i")
    new = [{"_id": "new", "text": "dunes"}]
    with monkeypatch.context() as patch:
        patch.setattr(IndexWriter, "finish_build", stop)
        with pytest.raises(KeyboardInterrupt):
            Index.build(new, out=tmp_path / "i", model="hashing")
    assert collection.documents() == _records("tides")
    assert [hit.doc_id for hit in collection.search("tides", DENSE)] == ["0"]
    Index.build(new, out=tmp_path / "i", model="hashing")
    assert [record.doc_id for record in collection.documents()] == ["new"]


@pytest.mark.thorough
def test_a_delete_is_durable(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from sbert_search.integrations.collection import Collection\n"
        "from sbert_search.integrations.records import Record\n"
        "collection = Collection(sys.argv[1], 'hashing')\n"
        "collection.write([Record(str(n), f'text {n}', {}) for n in range(5)])\n"
        "collection.delete(['1', '3', 'absent'])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "i")])
    assert done.returncode == -9
    assert [record.doc_id for record in Collection(tmp_path / "i").documents()] == ["0", "2", "4"]
    assert Index.open(tmp_path / "i").check().problems == ()


def test_threads_write_and_search_together() -> None:
    collection = Collection(model="hashing")
    collection.write([Record("first", "tides of the sea", {})])
    errors = Counter[str]()

    def work(number: int) -> None:
        try:
            collection.write([Record(f"{number}-{n}", f"text {n}", {}) for n in range(3)])
            assert collection.search("tides", DENSE)[0].doc_id == "first"
        except Exception as error:
            errors[repr(error)] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == Counter()
    assert len(collection) == 19


def test_a_temporary_index_ends_with_its_object() -> None:
    collection = Collection(model="hashing")
    collection.write(_records("a"))
    folder = collection.path.parent
    assert folder.is_dir()
    del collection
    assert not folder.exists()


def test_an_embedder_needs_an_index() -> None:
    with pytest.raises(QueryError, match="holds no index yet"):
        _ = Collection().embedder


def test_vectors_of_hits_survive_a_deletion_and_a_compaction(tmp_path: Path) -> None:
    collection = Collection(tmp_path / "i", "hashing")
    collection.write(_records("tide", "dune", "moon"))
    hits = collection.search("tide", DENSE)
    assert sorted(hit.doc_id for hit in hits) == ["0", "1", "2"]
    other = Index.open(tmp_path / "i")
    other.delete(["1"])
    other.compact()
    kept, vectors = collection.with_vectors(hits)
    assert sorted(hit.doc_id for hit in kept) == ["0", "2"]
    for hit, vector in zip(kept, vectors, strict=True):
        np.testing.assert_array_equal(collection.search(vector, DENSE)[0].doc_id, hit.doc_id)
    assert collection.with_vectors(kept[:0])[1].shape == (0, vectors.shape[1])
