"""What is remembered between processes: by key, checked when read, made again when damaged."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import NoReturn

import pytest

from sbert_search.base.cache import cache_folder, cached_or_computed


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def remember(key: object, value: object) -> object:
    return cached_or_computed("test", key, lambda: value, lambda found: isinstance(found, int))


def test_a_value_is_computed_once_a_key() -> None:
    assert remember(["a", 1], 10) == 10
    assert remember(["a", 1], 20) == 10
    assert remember(["a", 2], 30) == 30


def test_each_process_has_its_own_temporary_file() -> None:
    """Also a process of the same id, in another container."""
    remember("key", 10)
    (file,) = cache_folder("test").iterdir()
    file.write_bytes(b"")
    running, other = (file.with_name(file.name + end) for end in (".tmp", f".{os.getpid()}.tmp"))
    killed = file.with_name("other.json.2.tmp")
    for temporary in (running, other, killed):
        temporary.write_bytes(b"half")
    os.utime(killed, (0, 0))
    assert remember("key", 20) == 20
    assert {*cache_folder("test").iterdir()} == {file, running, other}


@pytest.mark.parametrize("damage", [b"", b"\xff", b"{}", b'"text"', b"[1"])
def test_a_value_that_cannot_be_one_is_computed_again(damage: bytes) -> None:
    remember("key", 10)
    (file,) = cache_folder("test").iterdir()
    file.write_bytes(damage)
    assert remember("key", 20) == 20
    assert remember("key", 30) == 20


def test_a_relative_cache_home_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", "/somebody")
    assert cache_folder("test") == Path("/somebody/.cache/sbert-search/test")


def test_a_user_without_a_home_folder_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert remember("key", 10) == 10
    assert remember("key", 20) == 20
