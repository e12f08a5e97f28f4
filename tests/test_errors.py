"""Errors keep their messages and attributes on their way from one process to another."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbert_search import errors
from sbert_search.base.folders import Folder
from sbert_search.errors import CorruptIndex, SbertSearchError
from sbert_search.index.shards.manifest import ShardRecord
from sbert_search.index.shards.opening import StaleShard


def kinds(kind: type[SbertSearchError] = SbertSearchError) -> Iterator[type[SbertSearchError]]:
    yield kind
    for further in kind.__subclasses__():
        if further.__module__ == errors.__name__:
            yield from kinds(further)


def made(kind: type[SbertSearchError]) -> SbertSearchError:
    if kind is CorruptIndex:
        return CorruptIndex("seg/1", "4 bytes", "3 bytes", "Copy it again.")
    return kind("failed")


@pytest.mark.parametrize("kind", list(kinds()))
def test_a_copy_has_the_message_and_the_attributes(kind: type[SbertSearchError]) -> None:
    assert_copied(made(kind))


def test_a_copy_of_an_error_with_arguments_of_its_own_is_whole(tmp_path: Path) -> None:
    record = ShardRecord(folder="shard-0001", generation=7, sha256="0" * 64)
    assert_copied(StaleShard(Folder.open(tmp_path), record))


def assert_copied(error: SbertSearchError) -> None:
    error.__notes__ = ["a note"]
    copied = copy.copy(error)  # made from the parts that are sent to another process
    assert type(copied) is type(error)
    assert (str(copied), vars(copied)) == (str(error), vars(error))
