import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from sbert_search.base.threads import Allowance, prefetch


def counting(n: int, made: list[int], closed: list[str] | None = None) -> Iterator[int]:
    try:
        for i in range(n):
            made.append(i)
            yield i
    finally:
        if closed is not None:
            closed.append(threading.current_thread().name)


def alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("depth", [1, 2, 50])
def test_items_come_in_order_and_the_thread_ends(depth: int) -> None:
    assert list(prefetch(range(20), depth)) == list(range(20))
    assert alive() == []


def test_the_source_runs_ahead_by_the_depth_and_no_further() -> None:
    made: list[int] = []
    items = prefetch(counting(100, made), 3)
    assert next(items) == 0
    deadline = time.monotonic() + 5
    while len(made) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(made) == 5  # one taken, three waiting, one in hand
    items.close()
    assert alive() == []


def test_an_error_comes_after_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("broken")

    items = prefetch(failing())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(KeyError, match="broken"):
        next(items)
    assert alive() == []


def test_an_early_close_stops_nested_stages_from_the_outside_in() -> None:
    made: list[int] = []
    closed: list[str] = []
    with (
        closing(prefetch(counting(10_000, made, closed), 1)) as inner,
        closing(prefetch((2 * item for item in inner), 1)) as outer,
    ):
        assert next(outer) == 0
    assert closed == ["prefetch"]
    assert len(made) < 10
    assert alive() == []


def test_an_error_of_the_consumer_stops_the_thread() -> None:
    def consume() -> None:
        with closing(prefetch(range(1000), 1)) as items:
            for item in items:
                if item == 3:
                    raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        consume()
    assert alive() == []


def test_a_depth_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="depth is 0"):
        next(prefetch([1], 0))


def test_an_allowance_lets_pass_what_fits_and_a_lone_item_of_any_size() -> None:
    allowance, passed = Allowance(10), list[int]()

    def take_all() -> None:
        for n_bytes in (50, 4, 4, 4):
            allowance.take(n_bytes)
            passed.append(n_bytes)

    thread = threading.Thread(target=take_all)
    thread.start()
    for expected, given_back in (([50], 50), ([50, 4, 4], 4)):
        deadline = time.monotonic() + 10
        while passed != expected and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert passed == expected
        allowance.give_back(given_back)
    thread.join(10)
    assert passed == [50, 4, 4, 4]


def test_a_closed_allowance_holds_nobody() -> None:
    allowance = Allowance(1)
    allowance.take(5)
    thread = threading.Thread(target=allowance.take, args=(5,))
    thread.start()
    allowance.close()
    thread.join(10)
    assert not thread.is_alive()
