"""An index with two sets of vectors for the same rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbert_search.index.settings import LexicalSettings
from sbert_search.index.storage.manifest import (
    Manifest,
    QueryModel,
    VectorFiles,
    VectorSettings,
)
from sbert_search.index.storage.transaction import Transaction
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.index.batches import make_batch, some_documents, some_vectors


def add_set(path: Path, vectors: NDArray[np.float32]) -> None:
    """Commit a set "v2" with vectors for all rows beside "v1", and make it the active one."""

    def change(work: Transaction) -> Manifest:
        old, segments = work.old, []
        for segment in old.segments:
            own = vectors[segment.row_start : segment.row_end]
            file = work.write_array(f"seg/{work.new_number():06d}.vec.npy", own)
            stored = VectorFiles(file=file, max_norm=100.0)
            both = {**segment.vectors, "v2": stored}
            segments.append(dataclasses.replace(segment, vectors=both))
        wide = VectorSettings(dim=vectors.shape[1], metric="dot")
        return dataclasses.replace(
            old,
            active="v2",
            vectors={**old.vectors, "v2": wide},
            query_models={"fast": QueryModel(vectors="v1", identity={"n": 1}, retention=0.9)},
            segments=tuple(segments),
        )

    with IndexStore.open(path).writer() as writer:
        writer.rewrite(change)


def test_the_active_set_is_searched_and_updated_while_the_other_one_is_kept(tmp_path: Path) -> None:
    narrow, wide = some_vectors(20), some_vectors(25, 16, seed=5)
    settings = VectorSettings(dim=8, metric="dot")
    empty = Manifest.new(settings, lexical=LexicalSettings(language="none"))
    store = IndexStore.create(tmp_path / "i", empty)
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(12), narrow[:12]))
        writer.commit(make_batch(some_documents(8, "e"), narrow[12:]))
    files_before = {file.name for file in store.snapshot.manifest.files}

    add_set(tmp_path / "i", wide[:20])
    store = IndexStore.open(tmp_path / "i")
    assert (store.snapshot.settings.dim, store.snapshot.manifest.lexical) == (16, empty.lexical)
    assert files_before < {file.name for file in store.snapshot.manifest.files}
    scores, rows = store.snapshot.search(wide[:3], 5)
    expected = wide[:3] @ wide[:20].T
    assert np.allclose(scores, -np.sort(-expected, axis=1)[:, :5], rtol=1e-6)
    assert (rows == np.argsort(-expected, axis=1)[:, :5]).all()
    with store.writer() as writer:  # new rows are in the active set alone
        writer.commit(make_batch(some_documents(5, "f"), wide[20:]))
        writer.delete(["d3"])
    assert [sorted(s.vectors) for s in store.snapshot.manifest.segments] == [
        ["v1", "v2"],
        ["v1", "v2"],
        ["v2"],
    ]
    assert check(tmp_path / "i").problems == ()
    assert len(store.snapshot.match(["text"], 30)[0].docs) == store.snapshot.n_docs == 24

    def back(work: Transaction) -> Manifest:  # to the first set, without the rows it lacks
        return dataclasses.replace(work.old, active="v1", segments=work.old.segments[:2])

    with store.writer() as writer:
        writer.rewrite(back)
    snapshot = IndexStore.open(tmp_path / "i").snapshot
    assert np.array_equal(snapshot.vectors(np.arange(20)), narrow)
    best = np.argsort(-(narrow[4] @ narrow.T))
    assert snapshot.n_docs == 19
    assert snapshot.search(narrow[4:5], 20)[1].tolist() == [[*best[best != 3], -1]]
