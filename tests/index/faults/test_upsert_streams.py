"""Long random streams of updates over few ids, against a dict."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.building.ingest import ingest
from sbert_search.index.storage.manifest import BuildCursor, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from tests.faults import FULL, keep_result
from tests.index.upserts import (
    DIM,
    Interrupted,
    Model,
    Rows,
    Tally,
    applied,
    draw_rows,
    draw_stream,
    run_stream,
)

ROWS = 50_000 if FULL else 20_000
# At CI scale: streams that each caught a writer which forgot versions still in flight.
SEEDS = range(1, 501) if FULL else (5, 19, 23)


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_build_that_is_stopped_again_and_again_counts_as_a_dict(tmp_path: Path) -> None:
    stream = replace(draw_stream(0, 0), n_ids=700, n_states=3, skew="even", blank=0.05)
    rows = draw_rows(stream, random.Random(0), 6_000)
    store = IndexStore.create(tmp_path / "i", Manifest.new(VectorSettings(dim=DIM, metric="dot")))
    for stop_after in (0, 7, 1, 25, None):
        reader, counts = Rows(rows, 100, stop_after), None
        store = IndexStore.open(store.path)
        with store.writer() as writer, suppress(Interrupted):
            writer.add_columns(reader.survey().columns)
            counts = ingest(
                writer,
                reader,
                HashingEmbedder(DIM),
                survey=reader.survey(),
                mode="add",
                on_truncate="warn",
                cursor=writer.snapshot.manifest.build or BuildCursor(source_sha256="", rows=0),
            ).counts
    model = Model()
    assert counts == applied(model, rows, "add")
    assert {doc.doc_id: doc.text for doc in store.snapshot.iter_documents()} == model
    listed = (tmp_path / "i.rejects.jsonl").read_text().splitlines()
    assert counts is not None
    assert len(listed) == counts.rejected
