"""An `Embedder` as LangChain's ``Embeddings``."""

from __future__ import annotations

from typing import Unpack

from langchain_core.embeddings import Embeddings

from sbert_search.embed.arguments import EmbedderOptions, ModelLike
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.index.building.model_check import as_embedder


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
