"""A `Reranker` as LangChain's ``BaseDocumentCompressor``."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import ConfigDict

from sbert_search.search.rerankers import Reranker


class SbertSearchReranker(BaseDocumentCompressor):
    """Keeps the documents that a cross-encoder scores best.

    The metadata of a kept document get its score as ``relevance_score``.

    Attributes:
        reranker: The cross-encoder.
        top_n: Number of documents to keep; None: all of them.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    reranker: Reranker
    top_n: int | None = 3

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Score documents with a query and return the best, best first."""
        ranked = self.reranker.rank(query, [doc.page_content for doc in documents], self.top_n)
        kept = [(documents[hit["corpus_id"]], hit["score"]) for hit in ranked]
        return [
            doc.model_copy(update={"metadata": {**doc.metadata, "relevance_score": score}})
            for doc, score in kept
        ]
