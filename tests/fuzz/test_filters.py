"""Damaged filters are answered or refused by name, in bounded time, and nothing else happens.

`FAULT_SCALE=full` tries fifty thousand.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbert_search.errors import QueryError
from tests.faults import FULL, keep_result
from tests.fuzz.child import peak_mib
from tests.fuzz.filter_mutations import mutated_filter
from tests.index.test_filters_sqlite import random_index

COUNT = 50_000 if FULL else 600
SEED = 7
LONGEST_S = 20  # of processor time
MAX_SHOWN = 1_500  # characters of a message


@pytest.fixture
def bounded() -> Iterator[None]:
    """End the test where one filter takes too much processor time."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.thorough
@pytest.mark.timeout(7_200)
def test_damaged_filters_are_answered_or_refused_by_name(fast_path: Path, bounded: None) -> None:
    snapshot = random_index(fast_path / "i", random.Random(SEED)).snapshot
    refused, longest_s = 0, 0.0
    for number in range(COUNT):
        where = mutated_filter(random.Random(f"{SEED}/{number}"))
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
        try:
            snapshot.filter_mask(where)
        except QueryError as error:
            refused += 1
            error_text = str(error)
            assert len(error_text) < MAX_SHOWN, error_text
            error_text.encode()
        except BaseException as error:
            error.add_note(f"filter {number} of seed {SEED}: {where[:2000]!r}")
            raise
        longest_s = max(longest_s, time.process_time() - begun)
    assert COUNT * 0.3 < refused < COUNT * 0.97
    keep_result(
        "filter_mutations",
        {
            "inputs": COUNT,
            "refused": refused,
            "answered": COUNT - refused,
            "uncaught": 0,
            "longest_s": round(longest_s, 2),
            "peak_mib": round(peak_mib()),
            "seed": SEED,
        },
    )
