import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sbert_search.errors import ConfigError
from sbert_search.models.loading import identity
from sbert_search.models.loading.identity import ModelIdentity, sha256_of, sha256_of_files

IDENTITY = ModelIdentity(
    name="here",
    weights_sha256="a" * 64,
    tokenizer_sha256="b" * 64,
    architecture="bert",
    pooling="mean",
    prompts={"query": "query: "},
    max_len=256,
    dim=384,
)


def test_it_survives_json() -> None:
    assert ModelIdentity.from_mapping(json.loads(json.dumps(IDENTITY.to_mapping()))) == IDENTITY
    with pytest.raises(ConfigError, match=r"model\.max_length.*'max_len'"):
        ModelIdentity.from_mapping({**IDENTITY.to_mapping(), "max_length": 5})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights_sha256", "c" * 64),
        ("tokenizer_sha256", "c" * 64),
        ("pooling", "cls"),
        ("prompts", {}),
        ("max_len", 128),
        ("dim", 256),
        ("similarity", "dot"),
        ("normalize", True),
    ],
)
def test_a_difference_is_named(field: str, value: object) -> None:
    other = dataclasses.replace(IDENTITY, **{field: value})  # type: ignore[arg-type]
    (line,) = IDENTITY.differences(other)
    assert line.startswith(f"{field}: ")


def test_conditions_and_how_it_was_computed_is_no_difference() -> None:
    other = dataclasses.replace(IDENTITY, name="there", engine="onnx", precision="bf16")
    assert IDENTITY.differences(other) == []
    assert [line.partition(":")[0] for line in IDENTITY.differences(other, computed=True)] == [
        "engine",
        "precision",
    ]
    assert not IDENTITY.same_engine(other)


def test_a_changed_file_is_hashed_again(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    assert sha256_of(path) == sha256_of(path) == hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert sha256_of(path) == hashlib.sha256(b"two").hexdigest()


def test_several_files_are_one_hash_whatever_their_order(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    both = sha256_of_files(tmp_path, ["a", "b"])
    assert both == sha256_of_files(tmp_path, ["b", "a"])
    assert both != sha256_of_files(tmp_path, ["a"]) == sha256_of(tmp_path / "a")


def test_the_hash_of_a_large_file_outlives_the_process(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"w" * identity._LARGE)
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    hashed: list[Path] = []
    compute = identity._hash

    def counted(path: Path) -> str:
        hashed.append(path)
        return compute(path)

    monkeypatch.setattr(identity, "_hash", counted)

    def later_process() -> str:
        identity._sha256.cache_clear()
        return sha256_of(path)

    assert [later_process(), later_process()] == [expected, expected]
    assert len(hashed) == 2  # the file changed a moment ago
    monkeypatch.setattr(identity, "_SETTLED_NS", 0)
    assert [later_process(), later_process()] == [expected, expected]
    assert len(hashed) == 3
    path.write_bytes(b"x" * identity._LARGE)
    assert later_process() != expected
