"""Reading passages for an export: the same texts, offsets, metadata and vectors as one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.exchange.passages import point_id, read_passages
from sbert_search.index.index import Index
from tests.exchange.samples import rows, sample


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return sample(tmp_path_factory.mktemp("a") / "i")


def test_blocks_hold_the_live_passages_as_the_index_reads_them(index: Index) -> None:
    state = index.state
    blocks = list(read_passages(state, list(state.columns)))
    found = np.concatenate([block.rows for block in blocks])
    assert found.tolist() == state.live_rows().tolist()
    read = [row for block in blocks for row in block.table.to_pylist()]
    assert max(row["chunk"] for row in read) >= 2
    for row, passage in zip(read, state.fetch(found), strict=True):
        document = passage.document
        assert row["doc_id"] == document.doc_id
        assert row["title"] == document.title
        assert (row["chunk"], row["char_start"]) == (passage.chunk, passage.char_start)
        shown = f"{document.title} {row['text']}" if row["char_start"] == 0 else row["text"]
        assert shown.strip() == passage.text.strip()
        kept = {
            name.removeprefix("meta."): value
            for name, value in row.items()
            if name.startswith("meta.") and value is not None
        }
        assert kept == dict(document.metadata)
    vectors = np.concatenate([block.vectors for block in blocks])
    assert np.array_equal(vectors, state.vectors(found))


def test_reading_goes_on_after_any_number_of_passages(index: Index) -> None:
    live = index.state.live_rows().tolist()
    for skip in range(len(live) + 2):
        rest = [row for block in read_passages(index.state, [], skip=skip) for row in block.rows]
        assert rest == live[skip:]


@pytest.mark.thorough
def test_a_sharded_index_is_read_in_the_order_of_an_index_without_shards(tmp_path: Path) -> None:
    """Other engines put passages with equal scores in the order in which they got them."""
    one = Index.build(rows(900), out=tmp_path / "one", model="hashing:8", chunk_tokens=16)
    many = Index.build(
        rows(900), out=tmp_path / "many", n_shards=4, model="hashing:8", chunk_tokens=16
    )
    for index in (one, many):
        index.upsert([*rows(40, seed=1), {"_id": "late", "text": "river mill", "late_column": 7}])
        index.delete([f"d/{number} é" for number in range(90, 120)])
    read = [list(read_passages(index.state, list(one.state.columns))) for index in (one, many)]
    assert len(read[0]) > 1
    for a, b in zip(*read, strict=True):
        assert a.table.equals(b.table)
        assert np.array_equal(a.vectors, b.vectors)
        assert np.all(np.diff(b.rows) > 0)
    for skip in (1, 700, many.state.n_rows - 1):
        rest = [row for block in read_passages(many.state, [], skip=skip) for row in block.rows]
        assert rest == many.state.live_rows().tolist()[skip:]


def test_a_document_that_begins_in_an_earlier_batch_keeps_its_title(tmp_path: Path) -> None:
    text = " ".join(f"w{n}" for n in range(9000))  # 1,286 passages, of which a batch holds 1,024
    row = {"_id": "long", "title": "A", "text": text, "year": 7}
    index = Index.build([row], out=tmp_path / "i", model="hashing:8", chunk_tokens=7)
    blocks = list(read_passages(index.state, ["year"]))
    assert len(blocks) > 1
    for block in blocks:
        assert set(block.table["title"].to_pylist()) == {"A"}
        assert set(block.table["meta.year"].to_pylist()) == {7}
    texts = [text for block in blocks for text in block.table["text"].to_pylist()]
    assert " ".join(texts).split() == text.split()


def test_ids_are_stable_and_differ_by_document_and_passage() -> None:
    assert point_id("a", 1) == "0897be56-528a-5562-8037-4cc3284b90ab"
    ids = {point_id(doc_id, chunk) for doc_id in ("a", "a1", "1", "é") for chunk in range(12)}
    assert len(ids) == 48
