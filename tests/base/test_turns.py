"""Who comes first is served first, whatever the others do."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from sbert_search.base.threads import Turns, fork_handlers

PATIENCE_S = 30


def until(happened: Callable[[], bool]) -> None:
    """Wait for other threads to come to where a test wants them."""
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.001)


def has(served: list[str], number: int) -> bool:
    return len(served) == number


def until_waiting(turns: Turns, number: int) -> None:
    until(lambda: turns.n_waiting == number)


def in_threads(*works: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("n_turns", [1, 2, 5])
def test_threads_in_a_loop_let_everybody_else_in(n_turns: int) -> None:
    """As many loops as turns: one that waits gets the first turn that any of them ends."""
    turns, served, stop = Turns(n_turns), list[str](), threading.Event()
    works = threading.Semaphore(0)  # lets one loop end its turn and ask for the next

    def loop() -> None:
        while not stop.is_set():
            with turns:
                served.append("loop")
                works.acquire(timeout=PATIENCE_S)

    def once() -> None:
        with turns:
            served.append("other")

    loops = in_threads(*[loop] * n_turns)
    until(lambda: len(served) == n_turns)
    for count in range(1, 6):
        (other,) = in_threads(once)
        until_waiting(turns, 1)
        works.release()
        other.join(PATIENCE_S)
        until(partial(has, served, n_turns + 2 * count))
        assert served[-2:] == ["other", "loop"]
    stop.set()
    works.release(n_turns)
    for thread in loops:
        thread.join(PATIENCE_S)


def test_the_order_of_service_is_that_of_asking() -> None:
    turns, served = Turns(1), list[int]()

    def worker(number: int) -> Callable[[], None]:
        def work() -> None:
            with turns:
                served.append(number)

        return work

    threads: list[threading.Thread] = []
    with turns:
        for number in range(12):
            threads += in_threads(worker(number))
            until_waiting(turns, len(threads))
    for thread in threads:
        thread.join(PATIENCE_S)
    assert served == list(range(12))


def test_who_ends_a_turn_and_asks_again_comes_after_those_who_wait() -> None:
    turns, served = Turns(1), list[str]()

    def other() -> None:
        with turns:
            served.append("other")

    with turns:
        (thread,) = in_threads(other)
        until_waiting(turns, 1)
    with turns:  # of a semaphore, this thread would nearly always take the turn it has given back
        served.append("again")
    thread.join(PATIENCE_S)
    assert served == ["other", "again"]


def test_no_more_at_once_than_there_are_turns() -> None:
    turns, guard = Turns(3), threading.Lock()
    running = most = 0

    def work() -> None:
        nonlocal running, most
        for _ in range(50):
            with turns:
                with guard:
                    running += 1
                    most = max(most, running)
                time.sleep(0)
                with guard:
                    running -= 1

    for thread in in_threads(*[work] * 10):
        thread.join(PATIENCE_S)
    assert (running, turns.n_waiting) == (0, 0)
    assert 1 <= most <= 3


def test_a_turn_comes_back_after_an_error_and_can_be_taken_twice() -> None:
    turns = Turns(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"), turns, turns:
            raise ValueError("broken")
    (thread,) = in_threads(lambda: turns.__enter__())
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def hold(turns: Turns, leave: threading.Event) -> None:
    """Keep a turn until the event is set."""
    with turns:
        leave.wait(PATIENCE_S)


def interrupt(turns: Turns) -> None:
    """Send Ctrl-C to the main thread when it waits for a turn."""
    until_waiting(turns, 1)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_ctrl_c_while_waiting_gives_up_the_place_in_line() -> None:
    turns, leave = Turns(1), threading.Event()
    threads = in_threads(partial(hold, turns, leave), partial(interrupt, turns))
    with pytest.raises(KeyboardInterrupt), turns:
        pass
    assert turns.n_waiting == 0
    leave.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    with turns:
        pass


def test_ctrl_c_while_a_fork_waits_gives_all_turns_back() -> None:
    turns, leave = Turns(3), threading.Event()
    threads = in_threads(partial(hold, turns, leave))
    until(lambda: turns._n_free == 2)
    threads += in_threads(partial(interrupt, turns))
    with pytest.raises(KeyboardInterrupt):
        fork_handlers.before()  # takes two turns, and waits for the third
    fork_handlers.after_in_parent()
    assert (turns._n_free, turns.n_waiting, fork_handlers._fork_lock.locked()) == (2, 0, False)
    leave.set()
    for thread in threads:
        thread.join(PATIENCE_S)
