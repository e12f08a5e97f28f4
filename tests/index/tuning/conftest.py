"""An index of vectors in clusters, small enough that FAISS answers at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sbert_search.index import settings as spec
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.tuning import settings, sweep
from sbert_search.index.tuning import settings as candidates
from sbert_search.index.tuning.settings import Family
from sbert_search.index.upkeep import merge_policy
from tests.index.batches import make_batch, some_documents

DIM, N_ROWS = 16, 4_000


def clustered(n_rows: int, seed: int) -> NDArray[np.float32]:
    """Draw vectors around 50 centres that are always the same, (n_rows, DIM)."""
    centres = np.random.default_rng(99).normal(size=(50, DIM))
    rng = np.random.default_rng(seed)
    noise = 0.5 * rng.normal(size=(n_rows, DIM))
    return (centres[rng.integers(0, 50, n_rows)] + noise).astype(np.float32)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few hundred rows count as many."""
    for module in (merge_policy, spec, candidates, settings):
        monkeypatch.setattr(module, "MIN_ANN_ROWS", 500)
    monkeypatch.setattr(sweep, "TINY_BUILD_ROWS", 1_000)


@pytest.fixture
def two_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the exact scan out, which nothing beats on so few rows."""
    kinds = [Family("IVF{lists},SQ8", (2, 4)), Family("HNSW16")]
    monkeypatch.setattr("sbert_search.index.tuning.tune.families", lambda n_rows, dim: kinds)


@pytest.fixture
def store(tmp_path: Path, _small: None) -> IndexStore:
    """Two segments, some rows deleted."""
    store = IndexStore.create(
        tmp_path / "i", Manifest.new(VectorSettings(dim=DIM), {"year": "int64"})
    )
    with store.writer() as writer:
        for part in range(2):
            documents = some_documents(N_ROWS // 2, f"{part}-")
            writer.commit(make_batch(documents, clustered(N_ROWS // 2, part)))
        writer.delete([f"0-{i}" for i in range(0, 300)])
    return store
