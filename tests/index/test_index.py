"""An index as its user holds it: what it sees of the changes that others make."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sbert_search.embedding.hashing import HashingEmbedder
from sbert_search.errors import IndexStoreError
from sbert_search.index.index import Index
from tests.search.corpus import small_index, write_jsonl


def test_refresh_moves_to_what_others_have_committed(tmp_path: Path) -> None:
    index = small_index(tmp_path)
    assert not index.refresh()
    other = Index.open(index.path)
    more = write_jsonl(tmp_path / "more.jsonl", [{"_id": "new", "text": "a new one"}])
    other.add(more, model=HashingEmbedder())
    assert (len(index), len(other)) == (5, 6)
    state = index.state
    assert index.refresh()
    assert (len(index), state.n_docs) == (6, 5)
    assert not index.refresh()
    assert not other.refresh()


def test_refresh_does_not_move_to_an_index_of_another_model(tmp_path: Path) -> None:
    index = small_index(tmp_path)
    (tmp_path / "other").mkdir()
    other = small_index(tmp_path / "other", embedder=HashingEmbedder(max_len=32))
    shutil.rmtree(index.path)
    shutil.copytree(other.path, index.path)
    for _ in range(2):
        with pytest.raises(IndexStoreError, match="now holds another index: its identity differs"):
            index.refresh()
    assert index.identity.max_len == HashingEmbedder().max_len
