"""What a writer of shards does after an interrupt, and which folders are no shards."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from sbert_search.embed.pipeline import EmbeddedBatch
from sbert_search.errors import CorruptIndex, IndexStoreError
from sbert_search.index.shards.opening import joined, naming_shard
from sbert_search.index.shards.store import assemble
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import merge_policy
from tests.index.batches import make_batch, some_documents, some_vectors
from tests.index.faults.model import EMPTY

YEARS = dataclasses.replace(EMPTY, columns={"year": "int64"})


def batch(n_docs: int, prefix: str = "d") -> EmbeddedBatch[None]:
    return make_batch(some_documents(n_docs, prefix), some_vectors(n_docs, 4))


def test_a_writer_goes_on_after_an_interrupt_right_behind_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = IndexStore.create(tmp_path / "i", YEARS, n_shards=3)
    interrupts = [KeyboardInterrupt()]

    def interrupted(*arguments: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return joined(*arguments)

    monkeypatch.setattr("sbert_search.index.writer.joined", interrupted)
    with store.writer() as writer:
        with pytest.raises(KeyboardInterrupt):
            writer.commit(batch(40))
        writer.commit(batch(1, "e"))  # changes one shard of three
        assert writer.snapshot.n_docs == 41
    assert IndexStore.open(tmp_path / "i").snapshot.n_docs == 41


def test_a_sharded_index_becomes_no_shard(tmp_path: Path) -> None:
    with IndexStore.create(tmp_path / "i", YEARS, n_shards=2).writer() as writer:
        writer.commit(batch(9))
    with pytest.raises(IndexStoreError, match="a shard cannot have shards"):
        assemble(tmp_path / "new", [tmp_path / "i"])
    assert IndexStore.open(tmp_path / "i").snapshot.n_docs == 9
    shutil.move(tmp_path / "i", tmp_path / "j" / "shard-0000")
    with pytest.raises(IndexStoreError, match=r"but its folder has no shards\.json"):
        IndexStore.create(tmp_path / "j", YEARS, n_shards=2)
    assert (tmp_path / "j" / "shard-0000" / "shards.json").exists()


@pytest.mark.parametrize("shards", [None, 2])
def test_a_writer_says_that_another_kind_of_index_is_there(
    tmp_path: Path, shards: int | None
) -> None:
    store = IndexStore.create(tmp_path / "i", YEARS, n_shards=shards)
    shutil.rmtree(tmp_path / "i")
    IndexStore.create(tmp_path / "i", YEARS, n_shards=None if shards else 2)
    before = sorted(path.name for path in (tmp_path / "i").rglob("*"))
    with pytest.raises(IndexStoreError, match="now holds another index"), store.writer():
        pass
    assert sorted(path.name for path in (tmp_path / "i").rglob("*")) == before


def test_a_merge_that_fails_after_a_commit_leaves_no_document_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_policy, "MIN_REMOVED", 1)
    store = IndexStore.create(tmp_path / "i", YEARS)
    with store.writer() as writer:
        writer.commit(batch(3))
        with monkeypatch.context() as patch:

            def fails(*_: object) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr("sbert_search.index.upkeep.compaction.merge_segments", fails)
            added = some_documents(2, "e")
            writer.classify(added)
            with pytest.raises(IndexStoreError, match="No space left"):
                writer.commit(make_batch(added, some_vectors(2, 4)))
        assert writer.snapshot.n_docs == 5
        assert writer.delete(["e0"]) == []
        [outcome, _] = writer.classify(added)
        assert outcome.name == "NEW"


@pytest.mark.parametrize("folder", ["", "shard-0001"])
def test_an_error_of_damage_keeps_its_cause(folder: str) -> None:
    cause = OSError(5, "Input/output error")
    with pytest.raises(CorruptIndex) as caught, naming_shard(folder):
        raise CorruptIndex("seg/000001.ids.npy", "the file", "no such file") from cause
    error = caught.value if not folder else caught.value.__cause__
    assert error is not None
    assert error.__cause__ is cause
