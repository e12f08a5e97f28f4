"""``--memory`` counts what the process holds, and refuses work before it begins."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from sbert_search.base import memory
from sbert_search.errors import ConfigError
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine


def test_memory_that_a_process_takes_is_counted() -> None:
    before = memory.anonymous_bytes()
    with mmap.mmap(-1, 64 << 20) as held:  # not what an allocator may have kept from before
        held.write(b"\1" * len(held))
        assert memory.anonymous_bytes() - before > len(held) // 2
    assert memory.unused_budget(None) is None
    assert memory.unused_budget(before // 2) == 0
    memory.require(None, 1 << 60, "Anything")


def test_a_budget_is_kept_by_whatever_writes_or_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"_id": "a", "text": "some words"}\n', encoding="utf-8")
    more = tmp_path / "more.jsonl"
    more.write_text('{"_id": "b", "text": "other words"}\n', encoding="utf-8")
    monkeypatch.setattr(memory, "anonymous_bytes", lambda: 1 << 30)
    tight, enough = (1 << 30) + (128 << 20), 2 << 30
    with pytest.raises(
        ConfigError,
        match=r"takes about 416 MiB, but 128 MiB of --memory are left; allow 1,440 MiB or more",
    ):
        Index.build(corpus, out=tmp_path / "i", model="hashing:32", memory_bytes=tight)
    index = Index.build(corpus, out=tmp_path / "i", model="hashing:32", memory_bytes=enough)
    for write in (index.add, index.upsert):
        with pytest.raises(ConfigError, match="Reading, embedding and writing"):
            write(more, memory_bytes=tight)
        assert len(index) == 1
    index.add(more, memory_bytes=enough)
    engine = SearchEngine(index)
    with pytest.raises(ConfigError, match="A search takes about 272 MiB"):
        engine.require_memory(tight)
    engine.require_memory(enough)
    assert len(engine.search("words", k=2)) == 2
