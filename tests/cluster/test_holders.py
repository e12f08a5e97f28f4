"""Each question goes to all shards once, whatever processes end."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from sbert_search.cluster import holders
from sbert_search.cluster.connection import Call, Hung, Lost, Process, Share
from sbert_search.cluster.holders import Holders, order_apart
from sbert_search.errors import ClusterError, QueryError
from tests.cluster.processes import LocalCluster, LocalProcess


class Repeating:
    """Returns the numbers of the shards that it is asked about."""

    def host(self) -> str:
        return "here"

    def same(self, shards: tuple[int, ...]) -> tuple[int, ...]:
        return shards

    def end(self, shards: tuple[int, ...]) -> None:
        raise Lost("Its memory ran out.")

    def fail(self, shards: tuple[int, ...]) -> None:
        raise QueryError(f"shards {shards} fail")


def same(process: Process, shards: tuple[int, ...]) -> Call:
    return process.call("same", shards)


@pytest.fixture(autouse=True)
def _repeating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "ShardWorker", Repeating)


def test_each_shard_is_asked_once(cluster: LocalCluster) -> None:
    held = Holders(cluster, Share(3, 1, 0), 1)
    answered = held.ask(5, same, 0.0)
    assert answered.answers == [(0, 3), (1, 4), (2,)]
    assert (answered.lost, answered.reason) == ((), "")


def test_replicas_take_turns(cluster: LocalCluster) -> None:
    held = Holders(cluster, Share(3, 1, 0), 2)
    turns = [sorted(map(str, held.ask(3, same, 0.0).answers)) for _ in range(4)]
    assert turns == [["(0,)", "(1,)", "(2,)"]] * 4
    assert [process.asked.count("same") for process in cluster.processes] == [4, 4, 4]
    first = Holders(cluster, Share(2, 1, 0), 2)
    for _ in range(4):
        first.ask(1, same, 0.0)
    assert [process.asked.count("same") for process in cluster.processes[3:]] == [2, 2]


def test_questions_of_one_turn_go_to_the_same_processes(cluster: LocalCluster) -> None:
    held = Holders(cluster, Share(2, 1, 0), 2)
    for _ in range(2):
        turn = held.turn()
        for _ in range(3):
            held.ask(1, same, 0.0, turn)
    assert [process.asked.count("same") for process in cluster.processes] == [3, 3]
    cluster.processes[0].running = False
    assert held.ask(1, same, 0.0, turn=0).answers == [(0,)]


def test_a_process_that_hangs_is_ended_and_replaced(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    held = Holders(cluster, Share(2, 1, 0), 2, timeout_s=7.0)
    hanging = cluster.processes[1]
    hanging.hangs = True
    assert held.ask(2, same, 0.0, turn=0).answers == [(0,), (1,)]
    assert (hanging.running, hanging.asked.count("same")) == (False, 1)
    assert len(cluster.processes) == 3
    message = "The process on here has not answered for 7 s. If searches take so long, allow more"
    assert f"{message} time with --shard-timeout. Another one" in capsys.readouterr().err
    assert held.ask(2, same, 0.0, turn=0).answers == [(0,), (1,)]
    assert [process.asked.count("same") for process in cluster.processes] == [2, 1, 2]


def test_a_question_at_which_every_process_hangs_is_not_asked_forever(
    cluster: LocalCluster,
) -> None:
    def question(process: Process, shards: tuple[int, ...]) -> Call:
        assert isinstance(process, LocalProcess)
        process.hangs = True
        return process.call("same", shards)

    held = Holders(cluster, Share(2, 1, 0), 1, timeout_s=7.0)
    answered = held.ask(2, question, 60.0)
    assert answered.lost == (0, 1)
    assert answered.reason.startswith("The process on here has not answered for 7 s.")
    assert len(cluster.processes) == 2 * (1 + holders.ATTEMPTS)
    held.end()
    assert not any(process.running for process in cluster.processes)


def test_a_late_failure_of_a_replaced_process_changes_nothing(cluster: LocalCluster) -> None:
    held, first = Holders(cluster, Share(1, 1, 0), 1), cluster.processes[0]
    first.hangs = True
    assert held.ask(1, same, 60.0).answers == [(0,)]
    for late in (Hung(120.0), Lost("It has ended.")):  # of calls by other threads
        held._lose(0, first, late)
        assert held.ask(1, same, 0.0).answers == [(0,)]
    assert len(cluster.processes) == 2


def test_opening_has_a_time_of_its_own(cluster: LocalCluster) -> None:
    held, given = Holders(cluster, Share(2, 1, 0), 1, timeout_s=7.0), list[float | None]()

    class Timed(Call):
        def result(self, timeout_s: float | None = None) -> object:
            given.append(timeout_s)
            return "opened"

    assert held.open(2, lambda process, shards: Timed(0)) == ["opened", "opened"]
    held.ask(2, lambda process, shards: Timed(0), 0.0)
    assert given == [holders.OPEN_S] * 2 + [7.0] * 2


def test_another_process_answers_for_a_lost_one(cluster: LocalCluster) -> None:
    held = Holders(cluster, Share(3, 1, 0), 2)
    cluster.processes[1].running = False
    for _ in range(2):
        answered = held.ask(4, same, 0.0)
        shards = sorted(shard for answer in answered.answers for shard in answer)  # type: ignore[attr-defined]
        assert shards == [0, 1, 2, 3]
        assert answered.lost == ()
    assert cluster.processes[1].asked.count("same") == 1  # then it is only asked whether it runs
    cluster.processes[2].running = False
    assert held.ask(4, same, 0.0).lost == (1,)  # shard 1 was in the processes 1 and 2
    assert held.ask(4, same, 0.0).reason == "It has ended."


def test_a_lost_shard_is_awaited(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Holders(cluster, Share(2, 1, 0), 1)
    cluster.processes[0].running = False
    assert held.ask(2, same, 0.0).lost == (0,)

    def finished(calls: Sequence[Call], timeout_s: float) -> list[Call]:
        cluster.processes[0].running = timeout_s > 0.0 or cluster.processes[0].running
        return list(calls)

    monkeypatch.setattr(holders, "wait_for_any", finished)
    answered = held.ask(2, same, 60.0)
    assert (answered.answers, answered.lost) == ([(1,), (0,)], ())


def test_a_shard_that_was_lost_long_ago_is_not_awaited(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, waits = Holders(cluster, Share(2, 1, 0), 1), list[float]()
    cluster.processes[0].running = False
    held.ask(2, same, 0.0)
    now_s = time.monotonic()

    def finished(calls: Sequence[Call], timeout_s: float) -> list[Call]:
        nonlocal now_s
        now_s += timeout_s
        waits.append(timeout_s)
        return list(calls)

    monkeypatch.setattr(holders, "wait_for_any", finished)
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    for waited_s in (30.0, 0.0):  # the second question finds that the time is over
        waits.clear()
        assert held.ask(2, same, 30.0).lost == (0,)
        assert sum(waits) == pytest.approx(waited_s, abs=0.3)


def test_a_question_that_ends_every_process_is_not_asked_forever(cluster: LocalCluster) -> None:
    held = Holders(cluster, Share(2, 1, 0), 2)
    answered = held.ask(1, lambda process, shards: process.call("end", shards), 60.0)
    assert (answered.lost, answered.reason) == ((0,), "Its memory ran out.")
    asked = [process.asked.count("end") for process in cluster.processes]
    assert sum(asked) == holders.ATTEMPTS


def test_a_question_about_one_shard_that_ends_processes_leaves_the_others(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Holders(cluster, Share(2, 1, 0), 1)
    cluster.processes[1].running = False

    def finished(calls: Sequence[Call], timeout_s: float) -> list[Call]:
        cluster.processes[1].running = timeout_s > 0.0 or cluster.processes[1].running
        return list(calls)

    monkeypatch.setattr(holders, "wait_for_any", finished)

    def question(process: Process, shards: tuple[int, ...]) -> Call:
        return process.call("end" if 0 in shards else "same", shards)

    answered = held.ask(2, question, 60.0)
    assert (answered.answers, answered.lost) == ([(1,)], (0,))
    assert answered.reason == "Its memory ran out."


def test_the_reason_is_that_of_the_lost_shard(cluster: LocalCluster) -> None:
    held = Holders(cluster, Share(2, 1, 0), 1)
    cluster.processes[0].running = False
    both = held.ask(2, lambda process, shards: process.call("end", shards), 0.0)
    assert (both.lost, both.reason) == ((0, 1), "It has ended. Its memory ran out.")
    answered = held.ask(2, same, 0.0)
    assert (answered.lost, answered.reason) == ((0,), "It has ended.")


@pytest.mark.parametrize(
    ("hosts", "replicas", "order"),
    [
        ("aabb", 2, "abab"),
        ("aabbc", 2, "abacb"),
        ("aaabbb", 3, "aababb"),
        ("abca", 2, "abac"),
        ("abab", 2, "abab"),
        ("aab", 2, "aab"),  # one machine holds two of three processes, so one shard is on it alone
        ("aab", 3, "aab"),
        ("aa", 1, "aa"),
    ],
)
def test_neighbours_are_on_several_machines(hosts: str, replicas: int, order: str) -> None:
    places = order_apart(hosts, replicas)
    assert sorted(places) == list(range(len(hosts)))
    assert "".join(hosts[place] for place in places) == order


def test_replicas_are_on_several_machines_or_this_is_said(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = iter("aabb" + "aab")
    monkeypatch.setattr(Repeating, "host", lambda self: next(names))
    held = Holders(cluster, Share(4, 1, 0), 2)
    assert "4 processes hold the shards: a, b, a, b." in capsys.readouterr().err
    assert [cluster.processes.index(process) for process in held._processes] == [0, 2, 1, 3]  # type: ignore[arg-type]
    Holders(cluster, Share(3, 1, 0), 2)
    assert "For 1 of 3 parts of the shards, all 2 processes run on" in capsys.readouterr().err


def test_the_exception_of_a_process_is_raised(cluster: LocalCluster) -> None:
    held = Holders(cluster, Share(2, 1, 0), 1)
    with pytest.raises(QueryError, match=r"shards \(0, 2\) fail"):
        held.ask(3, lambda process, shards: process.call("fail", shards), 0.0)


def test_all_holders_of_a_shard_are_told(cluster: LocalCluster) -> None:
    held, told = Holders(cluster, Share(3, 1, 0), 2), list[tuple[int, ...]]()

    def telling(process: Process, shards: tuple[int, ...]) -> Call:
        told.append(shards)
        return process.call("same", shards)

    held.open(3, telling)
    assert sorted(told) == [(0, 1), (0, 2), (1, 2)]


def test_too_few_processes_are_an_error(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "wait_for_any", lambda calls, timeout_s: calls[:1])
    monkeypatch.setattr(holders, "START_S", -1.0)
    with pytest.raises(ClusterError, match=r"1 of 2 processes have found no machine with 1 free"):
        Holders(cluster, Share(2, 1, 0), 1)
    assert not any(process.running for process in cluster.processes)
