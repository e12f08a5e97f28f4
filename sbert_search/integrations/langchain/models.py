"""An `Embedder` as LangChain's ``Embeddings``, a `Reranker` as its ``BaseDocumentCompressor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from pydantic import ConfigDict

from sbert_search.embed.arguments import EmbedderOptions, ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.index.building.model_check import as_embedder
from sbert_search.search.rerankers import Reranker


class SbertSearchEmbeddings(Embeddings):
    """Embeds texts with the prompts that the model has for documents and queries.

    Args:
        model: A name, a folder or an embedder; None: the default model of `Embedder`.
        options: How to open a model by name, such as ``device``; see `Embedder`.

    Raises:
        ModelError: The model cannot be found or loaded.
    """

    def __init__(self, model: ModelLike | None = None, **options: Unpack[EmbedderOptions]) -> None:
        self.embedder: TextEmbedder = as_embedder(model, **options)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed documents, one list of floats for each."""
        vectors: list[list[float]] = self.embedder.encode_document(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Embed a query."""
        vector: list[float] = self.embedder.encode_query([text])[0].tolist()
        return vector


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
