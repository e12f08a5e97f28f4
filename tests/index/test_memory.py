"""``--memory`` counts what the process holds, and refuses work before it begins."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

from sbert_search.base import memory
from sbert_search.errors import ConfigError
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from tests.limits import memory_limited


def test_memory_that_a_process_takes_is_counted() -> None:
    before = memory.anonymous_bytes()
    with mmap.mmap(-1, 64 << 20) as held:  # not what an allocator may have kept from before
        held.write(b"\1" * len(held))
        assert memory.anonymous_bytes() - before > len(held) // 2
    assert memory.unused() is None
    memory.require(1 << 60, "Anything")
    with memory_limited(before // 2):
        assert memory.unused() == 0


def test_a_budget_is_kept_by_whatever_writes_or_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"_id": "a", "text": "some words"}\n', encoding="utf-8")
    more = tmp_path / "more.jsonl"
    more.write_text('{"_id": "b", "text": "other words"}\n', encoding="utf-8")
    monkeypatch.setattr(memory, "anonymous_bytes", lambda: 1 << 30)
    tight, enough = (1 << 30) + (128 << 20), 2 << 30
    with (
        memory_limited(tight),
        pytest.raises(
            ConfigError,
            match=r"takes about 416 MiB, but 128 MiB .*set_memory_limit are left; allow 1,440 MiB",
        ),
    ):
        Index.build(corpus, out=tmp_path / "i", model="hashing:32")
    with memory_limited(enough):
        index = Index.build(corpus, out=tmp_path / "i", model="hashing:32")
    for write in (index.add, index.upsert):
        with memory_limited(tight), pytest.raises(ConfigError, match="Reading, embedding and wri"):
            write(more)
        assert len(index) == 1
    engine = SearchEngine(index)
    with memory_limited(enough):
        index.add(more)
        engine.require_memory()
        assert len(engine.search("words", k=2)) == 2
    with memory_limited(tight), pytest.raises(ConfigError, match="A search takes about 272 MiB"):
        engine.require_memory()


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2G"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"The memory limit is .*; pass a number of bytes"):
        memory.set_memory_limit(wrong)
    assert memory.limit() is None
