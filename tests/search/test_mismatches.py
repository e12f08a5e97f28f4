"""Every way in which a model can be another one is refused before any text is embedded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sbert_search import errors
from sbert_search.embed.embedder import Embedder
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import Vectors
from sbert_search.errors import ModelError, ModelMismatch
from sbert_search.index.index import Index
from sbert_search.search.engine import SearchEngine
from tests.faults import keep_result
from tests.models.test_bi_encoder import saved
from tests.search.corpus import DOCUMENTS, small_index, write_jsonl

OTHER: dict[str, dict[str, Any]] = {
    "other weights of the same shape": {"weights_sha256": "0" * 64},
    "another tokenizer": {"tokenizer_sha256": "0" * 64},
    "another architecture": {"architecture": "bert"},
    "another pooling": {"pooling": "cls"},
    "a prompt": {"prompts": {"query": "query: "}},
    "another length of texts": {"max_len": 128},
    "another length of vectors": {"dim": 128},
    "another similarity": {"similarity": "dot"},
    "vectors of any length": {"normalize": False},
}
DOORS: dict[str, Callable[[Path, HashingEmbedder, Path], object]] = {
    "search": lambda path, model, _: SearchEngine(path, model).search("water"),
    "search of an open index": lambda path, model, _: SearchEngine(Index.open(path), model),
    "inexact search": lambda path, model, _: SearchEngine(path, model, allow_inexact=True),
    "add": lambda path, model, source: Index.open(path).add(source, model=model),
    "upsert": lambda path, model, source: Index.open(path).upsert(source, model=model),
}

refused = 0


class Another(HashingEmbedder):
    """A model that differs in some fields, and must never be asked for a vector."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.identity = dataclasses.replace(self.identity, **fields)

    def encode(self, *arguments: Any, **more: Any) -> Vectors:
        raise AssertionError("a text was embedded by another model")

    def encode_query(self, texts: Sequence[str], **more: Any) -> Vectors:
        return self.encode(texts)

    def encode_document(self, texts: Sequence[str], **more: Any) -> Vectors:
        return self.encode(texts)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_index(tmp_path_factory.mktemp("mismatches")).path


@pytest.mark.parametrize("door", list(DOORS))
@pytest.mark.parametrize("other", list(OTHER))
def test_another_model_is_refused_by_the_field(path: Path, other: str, door: str) -> None:
    global refused
    source = write_jsonl(path.parent / "more.jsonl", [{"_id": "new", "text": "new"}])
    [field] = OTHER[other]
    with pytest.raises(ModelMismatch, match=f"{field}: "):
        DOORS[door](path, Another(**OTHER[other]), source)
    assert len(Index.open(path)) == len(DOCUMENTS)
    refused += 1
    figures = {"kinds_of_models": len(OTHER), "ways_in": len(DOORS), "refused": refused}
    keep_result("index_mismatches", {**figures, "let_in": 0})


@pytest.mark.thorough
def test_a_model_that_has_moved_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    model = saved(tmp_path / "model")
    index = small_index(tmp_path, embedder=Embedder(model, device="cpu"))
    model = model.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="if it lies elsewhere now, name it with model"):
        SearchEngine(index).search("germs")
    monkeypatch.setattr(errors, "offered", {"--query"})
    with pytest.raises(ModelError, match="if it lies elsewhere now, make a link to it there"):
        SearchEngine(index).search("germs")
    assert SearchEngine(index, model).search("germs")
    with pytest.raises(ModelError, match="no-such-model") as error:
        SearchEngine(index, tmp_path / "no-such-model").search("germs")
    assert "built with" not in str(error.value)
