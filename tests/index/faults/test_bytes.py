"""Every byte flipped and every length cut: the damage is reported under the file's name."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from sbert_search.errors import CorruptIndex, NotAnIndex
from sbert_search.index.storage import segments
from sbert_search.index.storage.manifest import Manifest, VectorSettings
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep.check import check
from tests.faults import FULL, keep_result
from tests.index.batches import make_batch, some_documents, some_vectors
from tests.index.faults.model import Operation, new_index

LARGE_ROWS, FLIPS = (30_000, 10_000) if FULL else (5_000, 40)
SEED = 5


@pytest.fixture
def small(fast_path: Path) -> Path:
    """Two documents, one of them dead, in the smallest files there can be."""
    path = fast_path / "i"
    put = Operation("put", (("a", 0, 2), ("b", 0, 1)), cursor=2)
    new_index(path, [put, Operation("delete", doc_ids=("a",))])
    return path


def files_of(path: Path) -> list[Path]:
    """The files that cannot be made again from others."""
    found = (file for file in path.rglob("*") if file.is_file() and file.name != "LOCK")
    return sorted(file for file in found if file.parent.name != "lex")


def damages(data: bytes) -> Iterator[bytes]:
    """Every byte with one bit flipped, every shorter length, one byte more."""
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        yield bytes(flipped)
        yield data[:at]
    yield data + b"\0"


@pytest.mark.thorough
def test_every_flip_and_every_cut_is_reported_by_file_name_when_opened(small: Path) -> None:
    counts = {}
    for file in files_of(small):
        name, data = file.relative_to(small).as_posix(), file.read_bytes()
        for damaged in damages(data):
            file.unlink()
            file.write_bytes(damaged)
            with pytest.raises(CorruptIndex) as reported:
                IndexStore.open(small)
            assert reported.value.file == name
            assert str(reported.value).startswith(f"{name} is corrupt: expected ")
        file.unlink()
        file.write_bytes(data)
        counts[name] = 2 * len(data) + 1
    assert len(counts) == 5
    assert IndexStore.open(small).snapshot.n_docs == 1
    keep_result("index_bytes", {"damages": counts, "unreported": 0})


@pytest.mark.thorough
def test_every_flip_and_every_cut_of_postings_changes_no_answer(small: Path) -> None:
    ((expected, *_),) = IndexStore.open(small).snapshot.lexical.search(["text v0"], 3)
    for file in sorted((small / "lex").iterdir()):
        name, data = file.relative_to(small).as_posix(), file.read_bytes()
        for damaged in damages(data):
            file.unlink()
            file.write_bytes(damaged)
            with pytest.warns(UserWarning, match=f"{name} is corrupt: expected .*index repair"):
                ((rows, *_),) = IndexStore.open(small).snapshot.lexical.search(["text v0"], 3)
            assert rows.tolist() == expected.tolist()
        (problem,) = check(small).problems
        assert problem.file == name
        assert "`sbert-search index repair` makes it again" in str(problem)
        file.unlink()
        file.write_bytes(data)


def test_a_random_flip_in_a_large_index_is_reported_by_file_name(fast_path: Path) -> None:
    rng, path = random.Random(SEED), fast_path / "i"
    store = IndexStore.create(path, Manifest.new(VectorSettings(dim=384)))
    with store.writer() as writer:
        for i in range(LARGE_ROWS // 5000):
            writer.commit(make_batch(some_documents(5000, f"{i}-"), some_vectors(5000, 384, i)))
        writer.delete([f"0-{n}" for n in range(500)])
    files = files_of(path)
    sizes = [file.stat().st_size for file in files]
    for _ in range(FLIPS):
        [file] = rng.choices(files, sizes)
        at, bit = rng.randrange(file.stat().st_size), 1 << rng.randrange(8)
        with file.open("r+b") as opened:
            flip(opened, at, bit)
            with pytest.raises(CorruptIndex) as reported:
                IndexStore.open(path)
            assert reported.value.file == file.relative_to(path).as_posix()
            flip(opened, at, bit)
    assert check(path).problems == ()
    figures = {"flips": FLIPS, "size_bytes": sum(sizes), "unreported": 0, "seed": SEED}
    keep_result("index_flips", figures)


def flip(file: BinaryIO, at: int, bit: int) -> None:
    """Turn one bit over where it lies."""
    old = os.pread(file.fileno(), 1, at)
    os.pwrite(file.fileno(), bytes([old[0] ^ bit]), at)


def test_a_missing_file_is_reported_by_name(small: Path) -> None:
    for file in files_of(small):
        data = file.read_bytes()
        file.unlink()
        name = file.relative_to(small).as_posix()
        expected = NotAnIndex if name == "MANIFEST.json" else CorruptIndex
        with pytest.raises(expected, match=file.name):
            IndexStore.open(small)
        file.write_bytes(data)


def test_files_too_large_to_hash_at_open_are_checked_in_full(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "HASH_AT_OPEN_BYTES", 0)
    for file in files_of(small):
        name, data = file.relative_to(small).as_posix(), file.read_bytes()
        file.unlink()
        file.write_bytes(data[:-3] + bytes([data[-3] ^ 4]) + data[-2:])
        assert [problem.file for problem in check(small).problems] == [name]
        file.write_bytes(data)


def test_a_link_or_a_folder_in_the_place_of_a_file_is_refused(small: Path) -> None:
    vectors = next(file for file in files_of(small) if file.name.endswith(".vec.npy"))
    kept = vectors.rename(small / "elsewhere")
    vectors.symlink_to(kept)
    with pytest.raises(CorruptIndex, match="expected a file that can be read"):
        IndexStore.open(small)
    vectors.unlink()
    vectors.mkdir()
    with pytest.raises(CorruptIndex, match=r"is not a regular file\. Restore"):
        IndexStore.open(small)
