"""A commit that is interrupted by something else than the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sbert_search.base.folders import Folder
from sbert_search.index.storage import manifest as manifests
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from tests.index.batches import make_batch, some_documents, some_vectors


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def commit_interrupted(store: IndexStore) -> None:
    with pytest.raises(KeyboardInterrupt), store.writer() as writer:
        writer.commit(make_batch(some_documents(4), some_vectors(4)))


def test_an_interrupt_after_the_swap_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=8), {"year": "int64"})
    )
    swap = manifests.write

    def swap_then_interrupt(
        folder: Folder, manifest: Manifest, ready: Callable[[], object]
    ) -> None:
        swap(folder, manifest, ready=ready)
        interrupt()

    monkeypatch.setattr(manifests, "write", swap_then_interrupt)
    commit_interrupted(store)
    assert IndexStore.open(tmp_path / "i").snapshot.n_docs == 4


def test_an_interrupt_before_the_swap_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=8), {"year": "int64"})
    )
    monkeypatch.setattr("sbert_search.index.upkeep.compaction.write_segment", interrupt)
    commit_interrupted(store)
    assert IndexStore.open(tmp_path / "i").snapshot.n_docs == 0
    assert list((tmp_path / "i" / "seg").iterdir()) == []
