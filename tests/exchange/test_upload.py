"""Uploads: an interrupted one is resumed, and sends each passage of one state of an index."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from sbert_search.errors import ConfigError, ExchangeError
from sbert_search.exchange import export
from sbert_search.exchange import upload as uploads
from sbert_search.exchange.passages import Passages
from sbert_search.exchange.plan import ExportPlan
from sbert_search.exchange.upload import Cursor, upload
from sbert_search.index.index import Index
from tests.exchange.samples import rows


class Collection:
    """A collection in memory, which refuses all batches after some.

    Attributes:
        ids: The passages that it holds; None: it does not exist.
        n_batches: How many more batches it takes.
    """

    def __init__(self) -> None:
        self.ids: set[str] | None = None
        self.n_batches = 0

    def exists(self) -> bool:
        return self.ids is not None

    def drop(self) -> None:
        self.ids = None

    def create(self) -> None:
        self.ids = set()

    def send(self, batch: Passages) -> None:
        if self.n_batches == 0:
            raise ConnectionError("away")
        self.n_batches -= 1
        assert self.ids is not None
        self.ids.update(batch.ids)

    def send_nothing(self) -> None:
        raise ConnectionError("away")

    def finish(self) -> None: ...

    def count(self) -> int:
        return len(self.ids or ())

    def is_transient(self, error: Exception) -> bool:
        return isinstance(error, ConnectionError)

    def close(self) -> None: ...


def test_an_upload_of_shards_is_resumed_after_any_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "BATCH_ROWS", 8)
    monkeypatch.setattr(uploads, "TRIES", 1)
    index = Index.build(rows(40), out=tmp_path / "i", n_shards=4, model="hashing:8")
    index.delete("d/3 é")
    plan = ExportPlan.of(index.state, None, words_only=True)
    path = tmp_path / "cursor.json"
    start = Cursor(to="x", url="u", name="n", index="i", state="s", fields={})
    receiver = Collection()
    for _ in range(20):
        receiver.n_batches = 1
        with contextlib.suppress(ExchangeError):
            upload(plan, receiver, start, path, replace_old=False)
            break
    assert receiver.count() == index.state.n_rows
    assert not path.exists()


def test_an_interrupted_replacement_says_how_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "BATCH_ROWS", 8)
    monkeypatch.setattr(uploads, "TRIES", 1)
    index = Index.build(rows(40), out=tmp_path / "i", model="hashing:8")
    plan = ExportPlan.of(index.state, None, words_only=True)
    path = tmp_path / "cursor.json"
    start = Cursor(to="x", url="u", name="n", index="i", state="s", fields={})
    receiver = Collection()
    receiver.ids, receiver.n_batches = {"old"}, 3
    with pytest.raises(
        ExchangeError, match="Run the command again without replace=True: it continues"
    ):
        upload(plan, receiver, start, path, replace_old=True)
    receiver.n_batches = 100
    assert upload(plan, receiver, start, path, replace_old=False) == 24
    assert receiver.count() == index.state.n_rows
    monkeypatch.setattr(receiver, "exists", receiver.send_nothing)
    with pytest.raises(ExchangeError, match=r"away\. Run the same command again\.$"):
        upload(plan, receiver, start, path, replace_old=True)


@pytest.mark.parametrize("n_shards", [None, 4])
def test_an_upload_is_not_continued_with_an_index_that_was_built_anew(
    n_shards: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "BATCH_ROWS", 8)
    monkeypatch.setattr(uploads, "TRIES", 1)
    receiver = Collection()
    engine = export._ENGINES["qdrant"]._replace(open=lambda *_: receiver)
    monkeypatch.setitem(export._ENGINES, "qdrant", engine)
    first = Index.build(rows(40), out=tmp_path / "i", model="hashing:8", n_shards=n_shards)
    receiver.n_batches = 2
    with pytest.raises(ExchangeError, match="away"):
        export.export_index(first, "qdrant", url="http://u")
    shutil.rmtree(tmp_path / "i")
    second = Index.build(rows(40, seed=1), out=tmp_path / "i", model="hashing:8", n_shards=n_shards)
    assert second.state.manifest.generation == first.state.manifest.generation
    receiver.n_batches = 100
    with pytest.raises(ConfigError, match=r"pass replace=True to delete it first\.$"):
        export.export_index(second, "qdrant", url="http://u")
    assert export.export_index(second, "qdrant", url="http://u", replace=True).resumed == 0


def test_a_collection_whose_creation_was_interrupted_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.build(rows(12), out=tmp_path / "i", model="hashing:8")
    plan = ExportPlan.of(index.state, None, words_only=True)
    start = Cursor(to="x", url="u", name="n", index="i", state="s", fields={})
    receiver = Collection()
    receiver.n_batches = 100
    whole = iter([KeyboardInterrupt, ConnectionError, None])

    def create() -> None:
        assert receiver.ids is None
        receiver.ids = set()
        if error := next(whole):  # the collection exists, but without its indexes
            raise error

    monkeypatch.setattr(receiver, "create", create)
    monkeypatch.setattr(uploads, "FIRST_WAIT_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        upload(plan, receiver, start, tmp_path / "c.json", replace_old=False)
    assert upload(plan, receiver, start, tmp_path / "c.json", replace_old=False) == 0
    assert next(whole, "made") == "made"
    assert receiver.count() == index.state.n_rows


def test_metadata_count_in_the_size_of_a_batch(tmp_path: Path) -> None:
    documents = [{"_id": str(n), "text": "x", "note": 200_000 * "y"} for n in range(90)]
    index = Index.build(documents, out=tmp_path / "i", model="hashing:8")
    plan = ExportPlan.of(index.state, None, words_only=True)
    sizes = [len(batch.rows) for block in plan.passages(0) for batch in uploads.batches(block)]
    assert sum(sizes) == 90
    assert max(sizes) <= uploads.BATCH_BYTES // 200_000 + 1
