"""The reranker keeps the documents that its cross-encoder scores best."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.documents import Document

from sbert_search.integrations.langchain import SbertSearchReranker
from sbert_search.search.rerankers import Reranker
from tests.models.tiny import TEXTS, tiny_cross_encoder


def test_documents_are_ordered_by_the_scores(tmp_path: Path) -> None:
    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "saved")
    reranker = Reranker(tmp_path / "saved", device="cpu", precision="fp32")
    documents = [Document(page_content=text, metadata={"n": n}) for n, text in enumerate(TEXTS)]
    kept = SbertSearchReranker(reranker=reranker, top_n=4).compress_documents(documents, "the cat")
    expected = reranker.rank("the cat", TEXTS, 4)
    assert [document.metadata["n"] for document in kept] == [hit["corpus_id"] for hit in expected]
    assert [document.metadata["relevance_score"] for document in kept] == pytest.approx(
        [hit["score"] for hit in expected]
    )
    assert documents[0].metadata == {"n": 0}
    all_of_them = SbertSearchReranker(reranker=reranker, top_n=None)
    assert len(all_of_them.compress_documents(documents, "the cat")) == len(TEXTS)
