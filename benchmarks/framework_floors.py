"""The least that an adapter for a framework can cost: the framework's calls and its documents.

Each function returns a callable that makes both for one query. The hits and the vector of the query
are given, so nothing is searched or embedded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sbert_search.records import Hit

Floor = Callable[[str], object]


def langchain(hits: Sequence[Hit]) -> Floor:
    """Make LangChain's documents. It adds no call: `similarity_search` is the store's method."""
    from langchain_core.documents import Document

    return lambda query: [
        Document(id=hit.doc_id, page_content=hit.text, metadata=dict(hit.metadata)) for hit in hits
    ]


def haystack(hits: Sequence[Hit], vector: list[float]) -> Floor:
    """Call two components of Haystack that return prepared answers."""
    from haystack import Document, component

    @component
    class Embedder:
        @component.output_types(embedding=list[float])
        def run(self, text: str) -> dict[str, list[float]]:
            return {"embedding": vector}

    @component
    class Retriever:
        @component.output_types(documents=list[Document])
        def run(self, query_embedding: list[float]) -> dict[str, list[Document]]:
            documents = [
                Document(id=hit.doc_id, content=hit.text, meta=dict(hit.metadata), score=hit.score)
                for hit in hits
            ]
            return {"documents": documents}

    embedder, retriever = Embedder(), Retriever()
    return lambda query: retriever.run(embedder.run(query)["embedding"])


def llamaindex(hits: Sequence[Hit], vector: list[float]) -> Floor:
    """Call the retriever of LlamaIndex with a model and a store that return prepared answers."""
    from llama_index.core import VectorStoreIndex
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode, TextNode
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        VectorStoreQuery,
        VectorStoreQueryResult,
    )

    class Model(BaseEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            return vector

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return vector

        def _get_text_embedding(self, text: str) -> list[float]:
            return vector

    class Store(BasePydanticVectorStore):
        stores_text: bool = True

        @property
        def client(self) -> None:
            return None

        def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
            return []

        def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
            return None

        def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
            return VectorStoreQueryResult(
                nodes=[
                    TextNode(id_=hit.doc_id, text=hit.text, metadata=dict(hit.metadata))
                    for hit in hits
                ],
                similarities=[hit.score for hit in hits],
                ids=[hit.doc_id for hit in hits],
            )

    index = VectorStoreIndex.from_vector_store(Store(), Model())
    return index.as_retriever(similarity_top_k=len(hits)).retrieve
