"""An id that stands twice with different content stops a build before it begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import CorpusError
from sbert_search.index.building.build import BuildSettings, refuse_conflicting_ids
from sbert_search.index.index import Index
from sbert_search.text.documents import CorpusReader


def source(folder: Path, *rows: dict[str, object]) -> Path:
    filler = [{"id": f"f{n}", "text": "filler"} for n in range(3000)]
    path = folder / "docs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:1], *filler, *rows[1:]]))
    return path


def test_both_places_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    path = source(tmp_path, {"id": "a", "text": "one"}, {"id": "a", "text": "two"})
    with pytest.raises(CorpusError) as caught:
        Index.build(path, out=tmp_path / "i", model=HashingEmbedder())
    message = str(caught.value)
    assert f"{path}:3002: the id also occurs in {path}:1, with other content (a" in message
    assert "on_error='skip'" in str(caught.value)
    assert not (tmp_path / "i").exists()


def test_the_same_content_twice_is_a_duplicate(tmp_path: Path) -> None:
    path = source(
        tmp_path, {"id": "a", "text": "one", "n": 1}, {"id": "a", "text": "one", "n": 1.0}
    )
    refuse_conflicting_ids(CorpusReader([path]))
    index = Index.build(path, out=tmp_path / "i", model=HashingEmbedder(16))
    assert len(index) == 3001
    assert index.info().built.duplicate == 1


def test_skipping_keeps_the_first(tmp_path: Path) -> None:
    path = source(tmp_path, {"id": "a", "text": "one"}, {"id": "a", "text": "two"})
    settings = BuildSettings(on_error="skip")
    index = Index.build(path, out=tmp_path / "i", model=HashingEmbedder(16), settings=settings)
    assert index.info().built.rejected == 1
    (passage,) = index.state.fetch(index.state.lookup(["a"]))
    assert passage.document.text == "one"
