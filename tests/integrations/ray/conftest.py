"""A Ray cluster of three machines, which are processes of this one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sbert_search.index.building import ingest
from sbert_search.index.writer import IndexWriter

SIZE = {"num_cpus": 1, "object_store_memory": 80_000_000}  # of each machine


@dataclass
class Machines:
    """A cluster: its head, and further machines that tests may kill."""

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
        self.nodes.append(self.cluster.add_node(wait=wait, **SIZE))

    @contextmanager
    def killed_at(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Let a build commit each batch; kill a machine each time that it has read so many rows.

        Another machine takes the place of a killed one. At the end, all machines are connected.

        Yields:
            The numbers of rows at which a machine was killed.
        """
        killed, commit = list[int](), IndexWriter.commit

        def killing(writer: IndexWriter, batch: Any, **keywords: Any) -> None:
            commit(writer, batch, **keywords)
            n_read = keywords["cursor"].rows
            if n_read >= min(rows[len(killed) :], default=n_read + 1):
                killed.append(n_read)
                self.kill(0)
                self.add(wait=False)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ingest, "COMMIT_S", 0.0)
            patch.setattr(IndexWriter, "commit", killing)
            yield killed
        self.cluster.wait_for_nodes()


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
    """Three machines with one CPU each, for all tests; a test that kills one adds another.

    The head is one of them, and no test kills it: each machine takes seconds to start.
    """
    from ray import cluster_utils

    make: Any = cluster_utils.Cluster
    unused = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    cluster = make(initialize_head=True, head_node_args={**SIZE, **unused})
    started = Machines(cluster, [])
    for _ in range(2):
        started.add(wait=False)
    cluster.wait_for_nodes()
    yield started
    cluster.shutdown()
