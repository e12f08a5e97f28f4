"""A Ray cluster of three machines, which are processes of this one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

OBJECT_STORE_BYTES = 80_000_000


@dataclass
class Machines:
    """A head without CPUs, and machines that tests may kill."""

    cluster: Any
    nodes: list[Any]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def kill(self, number: int) -> None:
        """Kill a machine at once, with the processes on it."""
        self.cluster.remove_node(self.nodes.pop(number), allow_graceful=False)

    def add(self, *, wait: bool = True) -> None:
        """Connect another machine."""
        size = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
        self.nodes.append(self.cluster.add_node(wait=wait, **size))


@pytest.fixture(scope="session", autouse=True)
def _small_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep Ray's files out of the user's folders; the paths of its sockets must be short."""
    short = Path(os.environ.get("TMPDIR", "/tmp")) / f"r{os.getpid()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(short) if len(str(short)) < 40 else "/tmp")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv(
            "RAY_memory_monitor_refresh_ms", "0"
        )  # others fill the memory of a test machine
        yield


@pytest.fixture(scope="session")
def machines(_small_ray: None) -> Iterator[Machines]:
    """Three machines with one CPU each, for all tests; a test that kills one adds another."""
    from ray import cluster_utils

    make: Any = cluster_utils.Cluster
    head = {"num_cpus": 0, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = make(initialize_head=True, head_node_args=head)
    started = Machines(cluster, [])
    for _ in range(3):
        started.add(wait=False)
    cluster.wait_for_nodes()
    yield started
    cluster.shutdown()
