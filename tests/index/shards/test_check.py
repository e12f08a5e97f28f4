"""A check of a sharded index reads all shards and compares them with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.base.folders import Folder
from sbert_search.errors import IndexStoreError
from sbert_search.index.shards import manifest as shard_manifests
from sbert_search.index.shards.manifest import ShardManifest, ShardRecord
from sbert_search.index.shards.opening import open_shard
from sbert_search.index.storage.manifest import OPEN_TRIES
from sbert_search.index.store import IndexStore
from sbert_search.index.upkeep import check as checks
from sbert_search.index.upkeep.check import check
from tests.index.faults.model import Operation, apply
from tests.index.shards.sharded import N_SHARDS, new_sharded
from tests.index.storage.test_held_folder import made

pytestmark = pytest.mark.usefixtures("unpacked")

PUT = Operation("put", tuple((f"d{i}", 0, 1) for i in range(12)))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    new_sharded(tmp_path / "i", [PUT])
    return tmp_path / "i"


def test_a_sound_index_has_no_problems(sharded: Path, tmp_path: Path) -> None:
    report = check(sharded)
    files = [file for file in sharded.rglob("*") if file.parent.name in ("seg", "lex", "del")]
    assert (report.problems, report.strays) == ((), ())
    assert (report.n_files, report.size_bytes) == (len(files), sum(f.stat().st_size for f in files))
    made(tmp_path / "one")
    assert check(tmp_path / "one").problems == ()


@pytest.mark.parametrize("number", range(N_SHARDS))
def test_damage_is_named_with_its_shard(sharded: Path, number: int) -> None:
    file = next((sharded / f"shard-{number:04d}" / "seg").glob("*.vec.npy"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    (problem,) = check(sharded).problems
    assert str(problem).startswith(f"shard-{number:04d}/seg/{file.name} is corrupt: expected xxh3")
    assert str(problem).endswith("Restore the file from a backup, or build the index again.")


def test_a_damaged_manifest_and_a_missing_shard_are_problems(sharded: Path) -> None:
    (sharded / "shard-0001").rename(sharded.parent / "away")
    (problem,) = check(sharded).problems
    assert "shard-0001 is corrupt: expected the folder of a shard" in str(problem)
    (sharded / "shards.json").write_bytes(b"{}")
    (problem,) = check(sharded).problems
    assert problem.file == "shards.json"


def test_documents_in_the_wrong_shards_are_problems(sharded: Path) -> None:
    store = IndexStore.open(sharded)
    swapped = [store.snapshot.parts[n].manifest for n in (1, 0, 2)]
    (sharded / "shard-0000").rename(sharded / "x")
    (sharded / "shard-0001").rename(sharded / "shard-0000")
    (sharded / "x").rename(sharded / "shard-0001")
    records = tuple(ShardRecord.of(n, manifest) for n, manifest in enumerate(swapped))
    shard_manifests.write(Folder.open(sharded), ShardManifest(shards=records))
    problems = check(sharded).problems
    assert [problem.expected for problem in problems] == [
        "only ids of shard 0",
        "only ids of shard 1",
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("n_changes", [1, OPEN_TRIES * N_SHARDS])
def test_a_writer_that_works_meanwhile_is_no_damage(
    sharded: Path, monkeypatch: pytest.MonkeyPatch, n_changes: int
) -> None:
    changes = iter(range(n_changes))

    def change_and_open(root: Folder, record: ShardRecord) -> Folder:
        if next(changes, None) is not None:
            with IndexStore.open(sharded).writer() as writer:
                apply(writer, PUT)
                writer.compact()
        return open_shard(root, record)

    monkeypatch.setattr(checks, "open_shard", change_and_open)
    if n_changes == 1:
        assert check(sharded).problems == ()
    else:
        with pytest.raises(IndexStoreError, match=f"changed {OPEN_TRIES} times"):
            check(sharded)
