"""A cluster without Ray."""

from __future__ import annotations

import pytest

from sbert_search.cluster import holders, placed, shard_worker
from tests.cluster.processes import VERSIONS, LocalCluster, all_finished


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    monkeypatch.setattr(holders, "wait_for_any", all_finished)
    monkeypatch.setattr(placed, "host_and_python", lambda: VERSIONS)
    monkeypatch.setattr(shard_worker, "host_and_python", lambda: VERSIONS)
    return LocalCluster([])
