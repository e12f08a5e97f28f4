"""Processes on a cluster that hold the shards of indexes; a question is answered for all shards."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple, Protocol, TypeAlias

from sbert_search.base.progress import note, warn
from sbert_search.cluster.connection import Call, Cluster, Hung, Lost, Process, Share, wait_for_any
from sbert_search.cluster.shard_worker import ShardWorker
from sbert_search.errors import ClusterError

CALLS = 4  # questions that a process works on at the same time
START_S = 120.0  # time in which all processes must have started
ANSWER_S = 120.0  # time in which a process must answer a question, by default
OPEN_S = 600.0  # time in which a process must open its shards, FAISS files included
ATTEMPTS = 5  # a shard is lost if this many processes have ended during one question about it
LOST_S = 30.0  # time for which a shard may have no process, until it counts as lost
_AGAIN_S = 0.2  # time between two checks whether an ended process runs again


class PendingAnswer(Protocol):
    """A started call that asks a process a question, such as a `Call`."""

    def result(self, timeout_s: float) -> object:
        """Wait for the answer; raise `Lost` if the process has ended or does not answer in time."""


Question: TypeAlias = Callable[[Process, tuple[int, ...]], PendingAnswer]
"""A function that asks a process about some shards, given by their numbers.

It returns at once; the returned object waits for the answer.
"""


class Answered(NamedTuple):
    """The answers of all shards but the lost ones."""

    answers: list[object]  # of processes, each for some shards
    lost: tuple[int, ...]  # numbers of the shards without an answer
    reason: str  # why the processes of the lost shards did not answer


class _Ended(NamedTuple):
    call: Call  # succeeds when the process runs again
    since_s: float  # when its end was noticed (`time.monotonic`)
    reason: str


class Holders:
    """The processes that hold shards.

    Each shard is held by ``replicas`` processes, on several machines where possible. If one of them
    ends, the others answer, and Ray restarts it on any machine with room. A process that does not
    answer a question within ``timeout_s`` is ended, and another one is started in its place.
    """

    def __init__(
        self, cluster: Cluster, share: Share, replicas: int, timeout_s: float = ANSWER_S
    ) -> None:
        assert 1 <= replicas <= share.processes
        self._cluster, self._share = cluster, share
        self._replicas, self._timeout_s = replicas, timeout_s
        self._turns, self._lock = itertools.count(), Lock()
        self._ended: dict[int, _Ended] = {}
        self._processes = [self._start() for _ in range(share.processes)]
        self._hosts = [""] * share.processes
        try:
            self._await()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.end()

    def turn(self) -> int:
        """Return the next turn, for the argument of `ask`."""
        return next(self._turns)

    def ask(
        self, n_shards: int, question: Question, wait_s: float, turn: int | None = None
    ) -> Answered:
        """Ask one of the processes that hold each shard, and another one if that process ends.

        When a shard has had no running process for ``wait_s``, all shards without a running process
        are lost. Questions with the same turn go to the same processes, unless one of these ends.
        An exception of a process other than `Lost` is raised here.
        """
        left, answers, reasons = set(range(n_shards)), list[object](), dict[int, str]()
        turn, attempts = self.turn() if turn is None else turn, Counter[int]()
        while asked := [shard for shard in sorted(left) if attempts[shard] < ATTEMPTS]:
            lost = self._lost()
            shards_of = defaultdict(list)
            for shard in asked:
                running = [holder for holder in self._of(shard, turn) if holder not in lost]
                if running:
                    shards_of[running[0]].append(shard)
            for shards, result in self._results(shards_of, question, self._timeout_s):
                if isinstance(result, Lost):
                    reasons.update(dict.fromkeys(shards, str(result)))
                    attempts.update(shards)
                else:
                    answers.append(result)
                    left.difference_update(shards)
            if not shards_of:  # no process of these shards runs
                since_s = min(max(lost[h].since_s for h in self._of(n, turn)) for n in asked)
                if time.monotonic() >= since_s + wait_s:
                    for shard in asked:
                        reasons.setdefault(shard, lost[self._of(shard, turn)[0]].reason)
                    break
                wait_for_any([ended.call for ended in lost.values()], _AGAIN_S)
        reason = " ".join(dict.fromkeys(reasons[shard] for shard in sorted(left)))
        return Answered(answers, tuple(sorted(left)), reason)

    def _lost(self) -> dict[int, _Ended]:
        """Return the processes that have ended and do not run again yet.

        A call to such a process takes seconds to fail, so nothing else is asked of it.
        """
        with self._lock:
            done = (
                wait_for_any([own.call for own in self._ended.values()], 0.0) if self._ended else ()
            )
            for holder, ended in list(self._ended.items()):
                if ended.call in done:
                    try:
                        self._hosts[holder] = str(ended.call.result())
                        del self._ended[holder]
                    except Lost:
                        call = self._processes[holder].call("host")
                        self._ended[holder] = ended._replace(call=call)
            return dict(self._ended)

    def open(self, n_shards: int, question: Question) -> list[object]:
        """Let each process open all shards that it holds; return the answers of those that run."""
        shards_of, lost = defaultdict(list), self._lost()
        for shard in range(n_shards):
            for holder in self._of(shard, 0):
                if holder not in lost:
                    shards_of[holder].append(shard)
        results = self._results(shards_of, question, OPEN_S)
        return [result for _, result in results if not isinstance(result, Lost)]

    def _results(
        self, shards_of: Mapping[int, Sequence[int]], question: Question, timeout_s: float
    ) -> list[tuple[Sequence[int], object]]:
        """Ask processes about shards, and wait for all; the result may be a `Lost`."""
        calls = []
        for holder, shards in shards_of.items():
            process = self._processes[holder]
            calls.append((holder, process, shards, question(process, tuple(shards))))
        results, errors = list[tuple[Sequence[int], object]](), list[Exception]()
        for holder, process, shards, call in calls:
            try:
                results.append((shards, call.result(timeout_s)))
            except Lost as lost:
                results.append((shards, self._lose(holder, process, lost)))
            except Exception as error:  # of the method; Ray prints errors that nobody fetches
                errors.append(error)
        if errors:
            raise errors[0]
        return results

    def _lose(self, holder: int, process: Process, lost: Lost) -> Lost:
        """Record that a process has ended, and replace it if it hangs; return the reason."""
        with self._lock:
            if self._processes[holder] is not process:
                return lost  # another thread has replaced it
            if isinstance(lost, Hung):
                host = self._hosts[holder] or "a machine"
                reason = f"The process on {host} has not answered for {lost.timeout_s:,.0f} s."
                if lost.timeout_s == self._timeout_s:
                    reason += " If searches take so long, allow more time with --shard-timeout."
                lost = Lost(reason)
                warn(f"{reason} Another one is started in its place.")
                process.end()
                self._processes[holder] = self._start()
            elif holder in self._ended:
                return lost
            again = self._processes[holder].call("host")
            self._ended[holder] = _Ended(again, time.monotonic(), str(lost))
            return lost

    def _start(self) -> Process:
        return self._cluster.start(
            ShardWorker, self._share, calls=CALLS, own_thread="open", restarts=True
        )

    def _of(self, shard: int, turn: int) -> list[int]:
        """Return the processes that hold a shard, in the order in which this turn asks them."""
        turns = ((turn + i) % self._replicas for i in range(self._replicas))
        return [(shard + i) % len(self._processes) for i in turns]

    def _await(self) -> None:
        """Wait until all processes run, at most `START_S`; then `order_apart`."""
        calls, begun_s = [process.call("host") for process in self._processes], time.monotonic()
        starting, hosts, share = list(calls), self._hosts, self._share
        while starting:
            for call in wait_for_any(starting, _AGAIN_S):
                starting.remove(call)
                with contextlib.suppress(Lost):  # Ray starts it again
                    hosts[calls.index(call)] = str(call.result())
            if starting and time.monotonic() > begun_s + START_S:
                raise ClusterError(
                    f"{len(starting)} of {share.processes:,} processes have found no machine with "
                    f"{share.cpus} free CPUs for {START_S:.0f} s. Connect one with `ray start "
                    "--address=...`, or end other programs on the cluster."
                )
        n, order = share.processes, order_apart(hosts, self._replicas)
        self._processes = [self._processes[process] for process in order]
        self._hosts = hosts = [hosts[process] for process in order]
        known = ", ".join(filter(None, hosts))
        note(f"{n} process{'es' * (n > 1)} hold{'s' * (n == 1)} the shards: {known}.")
        if self._replicas > 1 and (alone := _on_one_host(hosts, self._replicas)):
            note(
                f"For {alone} of {n} parts of the shards, all {self._replicas} processes run on "
                "one machine, whose end loses these shards. Connect more machines."
            )


def order_apart(hosts: Sequence[str], replicas: int) -> list[int]:
    """Order processes so that those with the same shards are on several machines where possible.

    ``hosts`` has the machine of each process. In the order that is returned, each ``replicas``
    processes that follow one another in a ring hold the same shards.
    """
    order, counts = list(range(len(hosts))), Counter(hosts)
    by_host = sorted(order, key=lambda process: (-counts[hosts[process]], hosts[process]))
    # Neighbours in `places` are mostly ``replicas`` places apart in the ring, so processes of one
    # machine, which are neighbours in `by_host`, rarely get the same shards.
    places = sorted(order, key=lambda place: place % replicas)
    spread = [process for _, process in sorted(zip(places, by_host, strict=True))]
    ways = (order, spread)
    return min(ways, key=lambda way: _on_one_host([hosts[process] for process in way], replicas))


def _on_one_host(hosts: Sequence[str], replicas: int) -> int:
    """Count the sets of ``replicas`` neighbours in the ring whose processes share one machine."""
    ring = [*hosts, *hosts]
    return sum(len({*ring[at : at + replicas]}) == 1 for at in range(len(hosts)))
