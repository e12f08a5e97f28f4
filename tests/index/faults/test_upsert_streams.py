"""Long random streams of updates over few ids, against a dict."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from tests.faults import FULL, keep_result
from tests.index.upserts import Tally, draw_stream, run_stream

ROWS = 50_000 if FULL else 20_000
# At CI scale: streams that each caught a writer which forgot versions still in flight.
SEEDS = range(1, 501) if FULL else (5, 13, 19, 23)


@pytest.mark.timeout(4 * 3_600)
def test_the_last_row_of_every_id_stands_and_counts_are_those_of_a_dict() -> None:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    tally, begun = Tally(), time.monotonic()
    for seed in SEEDS:
        stream = draw_stream(seed, ROWS)
        folder = Path(tempfile.mkdtemp(dir=memory))
        try:
            found = run_stream(stream, folder / "i")
        finally:
            shutil.rmtree(folder)
        assert (found.stale, found.lost, found.unexpected, found.wrong_counts) == (0,) * 4, stream
        tally += found
        seconds = round(time.monotonic() - begun)
        keep_result("upsert_streams", {**vars(tally), "rows_of_a_stream": ROWS, "seconds": seconds})
    assert tally.rows >= len(SEEDS) * ROWS
