"""Ids belong to shards by a rule that never changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sbert_search.index.shards.manifest import shard_of, shards_of, shards_of_hashes
from tests.index.storage.test_held_folder import made


def test_the_rule_is_fixed() -> None:
    # xxh3_64 of "d0", "d1" ... modulo 4. These values must never change: otherwise the
    # documents of existing indexes would not be found in their shards.
    assert shards_of([f"d{n}" for n in range(8)], 4).tolist() == [3, 2, 3, 0, 2, 1, 2, 1]
    assert shard_of("d5", 4) == shards_of(["d5"], 4)[0]
    assert shard_of("anything", 1) == 0


def test_shards_are_about_equally_large() -> None:
    counts = np.bincount(shards_of([f"document {n}" for n in range(40_000)], 8), minlength=8)
    assert counts.min() > 4_700
    assert counts.max() < 5_300


def test_the_id_table_of_an_index_tells_the_shards_of_its_documents(tmp_path: Path) -> None:
    snapshot = made(tmp_path / "i", 50).snapshot
    (segment,) = snapshot.segments
    by_hash = shards_of_hashes(segment.ids[0], 3)
    by_id = shards_of(segment.doc_ids(segment.firsts_of(slice(None))), 3)
    assert by_hash.tolist() == by_id.tolist()
