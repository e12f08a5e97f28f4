from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.storage.segment_writer import SegmentPart, make_part, write_segment
from sbert_search.index.store import IndexStore
from sbert_search.records import Document
from tests.index.batches import make_batch, some_vectors

TEXT_BYTES, PART_ROWS, N_PARTS = 1 << 20, 3, 4


def test_of_earlier_parts_only_the_rows_that_wait_for_a_batch_are_held(tmp_path: Path) -> None:
    """A part has 3 rows and a batch 2, so after every second part one row waits for its batch."""
    settings, first = VectorSettings(dim=8), pa.total_allocated_bytes()
    vectors_held, bytes_held = list[bool](), list[int]()

    def parts() -> Iterator[SegmentPart]:
        for at in range(N_PARTS):
            documents = [Document(f"{at} {n}", "x" * TEXT_BYTES) for n in range(PART_ROWS)]
            batch = make_batch(documents, some_vectors(PART_ROWS, seed=at))
            part, _ = make_part(batch, at * PART_ROWS, settings, {})
            vectors = weakref.ref(part.vectors)
            del documents, batch
            yield part
            del part
            vectors_held.append(vectors() is not None)
            bytes_held.append(pa.total_allocated_bytes() - first)

    empty = Manifest.new(settings)
    with IndexStore.create(tmp_path / "i", empty).writer() as writer, writer.rewriting() as [work]:
        record = write_segment(
            work,
            parts(),
            table=np.zeros((3, N_PARTS * PART_ROWS), np.uint64),
            n_rows=N_PARTS * PART_ROWS,
            manifest=empty,
            batch_rows=2,
        )
    assert (record.row_start, record.row_end) == (0, N_PARTS * PART_ROWS)
    assert not any(vectors_held)
    assert [round(held / TEXT_BYTES) for held in bytes_held] == [1, 0, 1, 0]
