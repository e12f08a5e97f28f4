"""Haystack: document store, retrievers, embedders and ranker, as components of pipelines.

Importing this package allows Haystack to load these components from serialised pipelines.
"""

from sbert_search.integrations.requirements import extra

with extra("haystack"):
    from haystack.core.serialization import allow_deserialization_module

    from sbert_search.integrations.haystack.document_store import SbertSearchDocumentStore
    from sbert_search.integrations.haystack.models import (
        SbertSearchDocumentEmbedder,
        SbertSearchRanker,
        SbertSearchTextEmbedder,
    )
    from sbert_search.integrations.haystack.retrievers import (
        SbertSearchBM25Retriever,
        SbertSearchEmbeddingRetriever,
        SbertSearchHybridRetriever,
    )

    allow_deserialization_module("sbert_search.integrations.haystack")

__all__ = [
    "SbertSearchBM25Retriever",
    "SbertSearchDocumentEmbedder",
    "SbertSearchDocumentStore",
    "SbertSearchEmbeddingRetriever",
    "SbertSearchHybridRetriever",
    "SbertSearchRanker",
    "SbertSearchTextEmbedder",
]
