"""Processes of a cluster that are objects in this process, for tests without Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sbert_search.cluster.connection import Call, Cluster, Hung, Lost, Process, Share
from sbert_search.cluster.holders import Holders
from sbert_search.cluster.placed import PlacedSnapshot
from sbert_search.index.snapshot import Snapshot

VERSIONS = ("here", "versions of the test")


class DoneCall(Call):
    """A call that is made when its result is asked for."""

    def result(self, timeout_s: float | None = None) -> object:
        made: Any = self._reference
        return made(timeout_s)


class LocalProcess(Process):
    """A process whose object is in this process.

    Attributes:
        running: Whether it answers; if not, its calls are lost.
        hangs: Whether no call ends.
        made: The object.
        asked: Names of the methods that were called.
    """

    def __init__(self, made: object) -> None:
        self.running, self.hangs, self.made, self.asked = True, False, made, list[str]()

    def call(self, method: str, *arguments: object) -> Call:
        self.asked.append(method)

        def answer(timeout_s: float | None) -> object:
            if not self.running:
                raise Lost("It has ended.")
            if self.hangs:
                assert timeout_s is not None, "this call blocks for ever"
                raise Hung(timeout_s)
            return getattr(self.made, method)(*arguments)

        return DoneCall(answer)

    def end(self) -> None:
        self.running = False


@dataclass
class LocalCluster(Cluster):
    """A cluster of this process; ``processes`` are those that it has started."""

    processes: list[LocalProcess]

    def start(
        self,
        make: Callable[[], object],
        share: Share,
        *,
        calls: int = 1,
        own_thread: str | None = None,
        restarts: bool = False,
    ) -> Process:
        self.processes.append(LocalProcess(make()))
        return self.processes[-1]

    def put(self, value: object) -> object:
        return value


def all_finished(calls: Sequence[Call], timeout_s: float) -> list[Call]:
    """Return all calls, as `connection.finished` does once they have finished."""
    return list(calls)


class LocalRunner:
    """Places states in three processes of a cluster, as `RayRunner` does."""

    def __init__(self, cluster: LocalCluster, *, partial: bool = False, replicas: int = 1) -> None:
        self.cluster, self.partial = cluster, partial
        self.holders = Holders(cluster, Share(3, 1, 0), replicas)
        self._placed: dict[Snapshot, PlacedSnapshot] = {}

    def placed(self, state: Snapshot) -> PlacedSnapshot:
        assert state.is_sharded
        if state not in self._placed:
            place = PlacedSnapshot(
                state, self.cluster.put, lambda: self.holders, partial=self.partial
            )
            place.open()
            self._placed[state] = place
        return self._placed[state]
