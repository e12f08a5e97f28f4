"""Fixtures of all tests of the index."""

from __future__ import annotations

import pytest

from sbert_search.index.storage import transaction


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write each file of an update for itself, so that a test can look at it or damage it."""
    monkeypatch.setattr(transaction, "PACK_BYTES", -1)
