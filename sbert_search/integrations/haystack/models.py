"""An `Embedder` as Haystack's embedders of texts and documents; a `Reranker` as its ranker."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Self

from haystack import component, default_from_dict, default_to_dict
from haystack.dataclasses import Document

from sbert_search.embed.embedder import open_embedder
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.search.rerankers import Reranker


class _Component:
    """A component that is serialised by its arguments, which are attributes too."""

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of the component."""
        _, *names = inspect.signature(type(self).__init__).parameters  # without self
        return default_to_dict(self, **{name: getattr(self, name) for name in names})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make the component that `to_dict` describes."""
        return default_from_dict(cls, data)


class _Embedding(_Component):
    """Opens a model at the first use.

    Args:
        model: A name or folder; None: the default model of `Embedder`.
        device: auto, cpu, cuda, cuda:N or mps.
    """

    def __init__(self, model: str | None = None, device: str = "auto") -> None:
        self.model, self.device = model, device
        self._opened: TextEmbedder | None = None

    def warm_up(self) -> None:
        """Open the model."""
        if self._opened is None:
            self._opened = open_embedder(self.model, device=self.device)

    @property
    def embedder(self) -> TextEmbedder:
        """The model."""
        self.warm_up()
        assert self._opened is not None
        return self._opened


@component
class SbertSearchTextEmbedder(_Embedding):
    """Embeds a query; arguments are a model's name or folder and a device."""

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        """Embed a query."""
        return {"embedding": self.embedder.encode_query([text])[0].tolist()}


@component
class SbertSearchDocumentEmbedder(_Embedding):
    """Embeds documents.

    Args:
        model: A name or folder; None: the default model of `Embedder`.
        device: auto, cpu, cuda, cuda:N or mps.
        meta_fields_to_embed: Names of the metadata fields whose values are put before the content.
        embedding_separator: Text between the metadata and the content.
    """

    def __init__(
        self,
        model: str | None = None,
        device: str = "auto",
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
    ) -> None:
        _Embedding.__init__(self, model, device)  # Haystack replaces the class, so no super()
        self.meta_fields_to_embed = meta_fields_to_embed or []
        self.embedding_separator = embedding_separator

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return copies of the documents with embeddings."""
        texts = [
            joined_text(document, self.meta_fields_to_embed, self.embedding_separator)
            for document in documents
        ]
        vectors = self.embedder.encode_document(texts).tolist()
        pairs = zip(documents, vectors, strict=True)
        return {"documents": [replace(document, embedding=vector) for document, vector in pairs]}


def joined_text(document: Document, fields: list[str], separator: str) -> str:
    """Join the values of metadata fields and the content of a document."""
    values = [str(document.meta[name]) for name in fields if document.meta.get(name) is not None]
    return separator.join([*values, document.content or ""])


@component
class SbertSearchRanker(_Component):
    """Orders documents by the scores of a cross-encoder.

    Args:
        model: A name or folder of a cross-encoder.
        device: auto, cpu, cuda, cuda:N or mps.
        top_k: Documents to keep.
        meta_fields_to_embed: Names of metadata to put before the content.
        embedding_separator: Text between the metadata and the content.
    """

    def __init__(
        self,
        model: str,
        device: str = "auto",
        top_k: int = 10,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
    ) -> None:
        if top_k < 1:
            raise ValueError(f"top_k must be greater than 0, but got {top_k}")
        self.model, self.device, self.top_k = model, device, top_k
        self.meta_fields_to_embed = meta_fields_to_embed or []
        self.embedding_separator = embedding_separator
        self._reranker: Reranker | None = None

    def warm_up(self) -> None:
        """Open the model."""
        if self._reranker is None:
            self._reranker = Reranker(self.model, device=self.device)

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return the best documents with their scores, best first."""
        self.warm_up()
        assert self._reranker is not None
        texts = [
            joined_text(document, self.meta_fields_to_embed, self.embedding_separator)
            for document in documents
        ]
        ranked = self._reranker.rank(query, texts, self.top_k if top_k is None else top_k)
        kept = [replace(documents[hit["corpus_id"]], score=hit["score"]) for hit in ranked]
        return {"documents": kept}
