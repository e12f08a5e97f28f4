"""What a `RayRunner` does with its connection and its processes, without Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from sbert_search.cluster import runner as runners
from sbert_search.cluster.connection import Cluster, Machine
from sbert_search.cluster.runner import RayRunner
from sbert_search.errors import ConfigError


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Connect runners to a cluster of two machines; return what was opened and closed."""
    said: list[str] = []

    @contextlib.contextmanager
    def connected(address: str | None) -> Iterator[Cluster]:
        said.append("opened")
        try:
            yield cluster
        finally:
            said.append("closed")

    cluster = Cluster()
    machines = [Machine("a", 2, 0), Machine("b", 2, 0)]
    monkeypatch.setattr(cluster, "machines", lambda: machines, raising=False)
    monkeypatch.setattr(runners, "connected", connected)
    return said


def test_a_runner_that_cannot_begin_disconnects(connections: list[str]) -> None:
    with pytest.raises(ConfigError, match="too few CPUs for 5 workers"):
        RayRunner(workers=5).__enter__()
    assert connections == ["opened", "closed"]
