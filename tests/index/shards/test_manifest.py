"""shards.json is read as it was written; damage, unknown versions and wrong values are named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sbert_search.base.folders import Folder
from sbert_search.errors import (
    ConfigError,
    CorruptIndex,
    IndexStoreError,
    NotAnIndex,
    SbertSearchError,
)
from sbert_search.index.shards import manifest as shard_manifests
from sbert_search.index.shards.manifest import ShardManifest, ShardRecord
from sbert_search.index.storage import manifest as manifests
from tests.faults import FAULTS, Fault, every_step
from tests.index.storage.test_held_folder import made


def some_manifest(n_shards: int = 3, generation: int = 5) -> ShardManifest:
    records = [
        ShardRecord(folder=f"shard-{n:04d}", generation=n, sha256=f"{n:064x}")
        for n in range(n_shards)
    ]
    return ShardManifest(generation=generation, shards=tuple(records))


def signed(values: object) -> bytes:
    body = json.dumps(values).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder, manifest = Folder.open(tmp_path), some_manifest()
    shard_manifests.write(folder, manifest)
    assert shard_manifests.read(folder) == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["shards.json"]


def test_a_record_names_the_manifest_of_its_shard(tmp_path: Path) -> None:
    snapshot = made(tmp_path / "i").snapshot
    record = ShardRecord.of(2, snapshot.manifest)
    stored = (tmp_path / "i" / manifests.NAME).read_text().partition("\n")[0]
    assert (record.folder, record.generation, record.sha256) == ("shard-0002", 1, stored)


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_each_damaged_byte_is_found(tmp_path: Path, at: int) -> None:
    data = bytearray(manifests.encode(some_manifest()))
    data[at] ^= 1
    (tmp_path / "shards.json").write_bytes(data)
    with pytest.raises(CorruptIndex, match=r"shards\.json is corrupt"):
        shard_manifests.read(Folder.open(tmp_path))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 2}, IndexStoreError, "newer version.*format version 2"),
        ({"colour": 1}, IndexStoreError, "newer version.*colour"),
        ({"version": "one"}, CorruptIndex, "its version is 'one'"),
        ({"format": "sbert-search index"}, CorruptIndex, "no known format"),
        ({"routing": "by title"}, CorruptIndex, "its routing is 'by title'"),
        ({"shards": []}, CorruptIndex, "number of shards is 0"),
        (
            {"shards": [{"folder": "../x", "generation": 1, "sha256": "0" * 64}]},
            CorruptIndex,
            "its",
        ),
        (
            {"shards": [{"folder": "shard-0000", "generation": 1, "sha256": "x"}]},
            CorruptIndex,
            "no",
        ),
        ({"shards": [{"folder": "shard-0000", "generation": 1}]}, CorruptIndex, "missing"),
        ({"generation": "many"}, CorruptIndex, "generation"),
    ],
)
def test_wrong_values_are_named(
    change: dict[str, object], error: type[SbertSearchError], message: str
) -> None:
    values = json.loads(manifests.encode(some_manifest()).partition(b"\n")[2])
    with pytest.raises(error, match=message):
        shard_manifests.decode(signed(values | change))


def test_other_folders_hold_no_sharded_index(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndex, match=r"no shards\.json"):
        shard_manifests.read(Folder.open(tmp_path))
    (tmp_path / "shards.json").mkdir()
    with pytest.raises(NotAnIndex, match="can be read"):
        shard_manifests.read(Folder.open(tmp_path))


@pytest.mark.parametrize("n_shards", [0, -1, 1025])
def test_a_number_of_shards_out_of_range_is_refused(n_shards: int) -> None:
    with pytest.raises(ConfigError, match=f"number of shards is {n_shards}; it must be an integer"):
        shard_manifests.require_shard_count(n_shards)


def test_a_new_index_has_few_enough_shards_for_the_usual_limit_of_open_files() -> None:
    shard_manifests.require_new_shard_count(shard_manifests.MAX_NEW_SHARDS)
    assert shard_manifests.MAX_NEW_SHARDS * shard_manifests.FILES_OF_SHARD < 1024 - 100
    with pytest.raises(ConfigError, match="is 129; a new index has at most 128, since a writer"):
        shard_manifests.require_new_shard_count(129)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_replacement_leaves_the_old_or_the_new_manifest(
    tmp_path: Path, fault: Fault
) -> None:
    old, new = some_manifest(generation=1), some_manifest(generation=2)
    folder = Folder.open(tmp_path)

    def prepare() -> None:
        shard_manifests.write(folder, old)

    seen = set()
    for _ in every_step(fault, prepare, lambda: shard_manifests.write(folder, new)):
        seen.add(shard_manifests.read(folder).generation)
    assert seen == {1, 2} or seen == {1}
