"""A pass that goes on from a batch border gives what an uninterrupted pass gives after it."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from sbert_search.base import memory
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader, ReadBatch

N_ROWS = 23


def write_sources(folder: Path) -> None:
    """Five formats with good rows, bad rows and blank lines among them."""
    rng = random.Random(4)
    lines = [f'{{"id": "j{n}", "text": "text {n}"}}' for n in range(N_ROWS)]
    for place in (0, 5, 22):
        lines[place] = rng.choice(["{", '{"id": 1.5, "text": "t"}', '{"text": "no id"}'])
    (folder / "a.jsonl").write_text("\n\n".join(lines))
    records = [f'c{n},"text\n{n}"' if n % 7 else f"c{n}" for n in range(N_ROWS)]
    (folder / "b.csv").write_text("id,text\n" + "\n".join(records))
    columns = {"id": [f"p{n}" for n in range(N_ROWS)], "text": ["text", *[" "] * 2] * 7 + ["x"] * 2}
    pq.write_table(pa.table(columns), folder / "c.parquet", row_group_size=4)
    with ipc.new_file(folder / "d.arrow", pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns), max_chunksize=6)
    (folder / "e").mkdir()
    for n in range(5):
        (folder / "e" / f"{n}.txt").write_text(f"text {n}" if n != 2 else "")


def reader_of(folder: Path, batch_rows: int) -> CorpusReader:
    sources = [folder / name for name in ("a.jsonl", "b.csv", "c.parquet", "d.arrow", "e")]
    return CorpusReader(sources, on_error="skip", batch_rows=batch_rows)


@pytest.mark.thorough
@pytest.mark.parametrize("batch_rows", [1, 4, 10, 1000])
def test_every_border_is_a_place_to_go_on(tmp_path: Path, batch_rows: int) -> None:
    write_sources(tmp_path)
    reader = reader_of(tmp_path, batch_rows)
    whole = list(reader.batches())
    survey = reader.survey()
    assert survey.rows == whole[-1].rows_end == 4 * N_ROWS + 4  # an empty file is no row
    assert survey.rejected == sum(len(batch.rejects) for batch in whole)
    for place, batch in enumerate(whole):
        again = reader_of(tmp_path, batch_rows)
        assert list(again.batches(skip_rows=batch.rows_end)) == whole[place + 1 :]


def test_the_batch_size_changes_no_row(tmp_path: Path) -> None:
    write_sources(tmp_path)

    def flat(batches: list[ReadBatch]) -> list[object]:
        return [item for batch in batches for item in [*batch.documents, *batch.rejects]]

    by_one, by_many = (list(reader_of(tmp_path, size).batches()) for size in (1, 1000))
    assert sorted(map(repr, flat(by_one))) == sorted(map(repr, flat(by_many)))


def test_the_last_batch_ends_its_block(tmp_path: Path) -> None:
    """Also if the documents of the last row fill the last batch."""
    write_sources(tmp_path)
    for share in (0.3, 0.5, 1.0):

        def filled(document: Document, share: float = share) -> float:
            return share

        batches = list(reader_of(tmp_path, 7).batches(share=filled))
        blocks = [batch.rows_end for batch in batches if batch.ends_block]
        n_rows = batches[-1].rows_end
        assert blocks == [*range(7, n_rows, 7), n_rows]
        starts = [batch.starts_block for batch in batches]
        assert starts == [True, *(batch.ends_block for batch in batches[:-1])]


def test_batches_of_long_rows_end_early_at_the_same_borders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = memory.shares()._replace(batch=2000)
    monkeypatch.setattr(memory, "shares", lambda: small)
    write_sources(tmp_path)
    whole = list(reader_of(tmp_path, 1000).batches())
    assert 1 < max(len(batch.documents) for batch in whole) < 5
    for place, batch in enumerate(whole):
        rest = list(reader_of(tmp_path, 1000).batches(skip_rows=batch.rows_end))
        assert rest == whole[place + 1 :]
