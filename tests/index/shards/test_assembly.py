"""Indexes that were built apart become the shards of one index, without copies of their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.errors import IndexStoreError, NotAnIndex
from sbert_search.index.building.given_vectors import no_model
from sbert_search.index.index import Index
from sbert_search.index.shards.manifest import shards_of
from sbert_search.index.shards.store import assemble, rows_from
from sbert_search.index.storage.manifest import ColumnType, Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.faults import every_step
from tests.index.batches import make_batch, some_documents, some_vectors

N_DOCS = 40


def parts_at(folder: Path, wrong: str = "") -> list[Path]:
    """Build three parts whose documents are routed by their ids."""
    folder.mkdir(exist_ok=True)
    documents, vectors = some_documents(N_DOCS), some_vectors(N_DOCS)
    numbers = shards_of([document.doc_id for document in documents], 3)
    if wrong == "shard":
        numbers[5] = (numbers[5] + 1) % 3
    parts = []
    for number in range(3):
        settings = VectorSettings(dim=8, metric="dot" if wrong == "metric" and number else "cosine")
        first = 0 if wrong == "rows" else rows_from(number)
        columns: dict[str, ColumnType] = {"year": "int64", "volume": "int64"}
        if wrong == "column" and number:
            columns["volume"] = "string"
        store = IndexStore.create(
            folder / f"p{number}", Manifest.new(settings, columns, next_row=first)
        )
        own = [d for d, n in zip(documents, numbers, strict=True) if n == number]
        with store.writer() as writer:
            writer.commit(make_batch(own, vectors[numbers == number]))
        parts.append(store.path)
    return parts


def test_a_row_of_a_deleted_document_counts_as_a_row_of_its_part(tmp_path: Path) -> None:
    paths = []
    numbers = shards_of([f"d{n}" for n in range(N_DOCS)], 2)
    for number, n_docs in enumerate((1, 10)):
        own = [d for d, n in zip(some_documents(N_DOCS), numbers, strict=True) if n == number]
        store = IndexStore.create(
            tmp_path / f"p{number}", Manifest.new(VectorSettings(dim=8), {"year": "int64"})
        )
        with store.writer() as writer:
            writer.commit(make_batch(own[:n_docs], some_vectors(n_docs)))
        paths.append(store.path)
    with store.writer() as writer:
        writer.delete([own[0].doc_id])  # its row 0 is that of the document of the other part
    with pytest.raises(IndexStoreError, match="Row 0 is in two of the parts"):
        assemble(tmp_path / "whole", paths)


def test_another_folder_in_the_place_of_a_part_is_not_taken_for_the_part(tmp_path: Path) -> None:
    parts = parts_at(tmp_path / "parts")
    (tmp_path / "whole").mkdir()
    other = IndexStore.create(
        tmp_path / "whole" / "shard-0000", Manifest.new(VectorSettings(dim=8, metric="cosine"), {})
    )
    with pytest.raises(IndexStoreError, match=r"shard-0000 exists already, so .*p0 cannot be"):
        assemble(tmp_path / "whole", parts)
    assert all(part.exists() for part in parts)
    other.path.rename(tmp_path / "other")
    assert assemble(tmp_path / "whole", parts).snapshot.n_docs == N_DOCS


def test_parts_become_one_index_by_renames(tmp_path: Path) -> None:
    parts = parts_at(tmp_path / "parts")
    inodes = {file.stat().st_ino for part in parts for file in part.rglob("*.npy")}
    store = assemble(tmp_path / "whole", parts)
    assert store.snapshot.n_docs == N_DOCS
    assert {file.stat().st_ino for file in (tmp_path / "whole").rglob("*.npy")} == inodes
    assert not any(part.exists() for part in parts)
    assert check(tmp_path / "whole").problems == ()
    with store.writer() as writer:
        writer.commit(make_batch(some_documents(3, "new"), some_vectors(3)))
        assert writer.delete(["d7", "absent"]) == ["absent"]
    reopened = IndexStore.open(tmp_path / "whole").snapshot
    assert reopened.n_docs == N_DOCS + 2
    assert [document.doc_id for document in reopened.iter_documents()][-3:] == [
        "new0",
        "new1",
        "new2",
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("shard", r"holds a document of shard \d"),
        ("rows", "Row 0 is in two of the parts"),
        ("metric", "its metric differs"),
        (
            "column",
            r"p1 cannot be shard 1 .*'volume' is int64 in the index and string in the source",
        ),
    ],
)
def test_parts_that_are_no_shards_of_one_index_are_refused(
    tmp_path: Path, wrong: str, message: str
) -> None:
    parts = parts_at(tmp_path / "parts", wrong)
    with pytest.raises(IndexStoreError, match=message):
        assemble(tmp_path / "whole", parts)
    assert all(part.exists() for part in parts)
    with pytest.raises(NotAnIndex):
        assemble(tmp_path / "other", [*parts, tmp_path / "absent"])


def test_an_interrupted_assembly_goes_on(fast_path: Path) -> None:
    made = 0

    def prepare() -> None:
        nonlocal made
        made += 1
        parts_at(fast_path / f"parts{made}")

    def work() -> None:
        assemble(
            fast_path / f"whole{made}", [fast_path / f"parts{made}" / f"p{n}" for n in range(3)]
        )

    for _ in every_step("kill", prepare, work):
        if not (fast_path / f"whole{made}" / "shards.json").exists():
            work()
        assert IndexStore.open(fast_path / f"whole{made}").snapshot.n_docs == N_DOCS
    assert made > 8


def test_parts_whose_integers_float64_would_round_are_refused(tmp_path: Path) -> None:
    ids = [f"d{n}" for n in range(20)]
    numbers = shards_of(ids, 2)
    parts = []
    settings = VectorSettings(dim=8, identity=no_model(8, "cosine").to_mapping())
    for number, value in enumerate((2**53 + 1, 0.5)):
        (first, *_) = (i for i, n in zip(ids, numbers, strict=True) if n == number)
        out = tmp_path / f"p{number}"
        IndexStore.create(out, Manifest.new(settings, {}, next_row=rows_from(number)))
        Index.open(out).add([{"_id": first, "text": "x", "n": value}], vectors=np.eye(1, 8))
        parts.append(out)
    with pytest.raises(IndexStoreError, match=r"'n' of .*p0 holds integers that"):
        assemble(tmp_path / "whole", parts)
