"""LangChain: vector store, embeddings, retriever, reranker and document index."""

from sbert_search.integrations.requirements import extra

with extra("langchain"):
    from sbert_search.integrations.langchain.models import (
        SbertSearchEmbeddings,
        SbertSearchReranker,
    )
    from sbert_search.integrations.langchain.retriever import (
        SbertSearchDocumentIndex,
        SbertSearchRetriever,
    )
    from sbert_search.integrations.langchain.vectorstore import SbertSearchVectorStore

__all__ = [
    "SbertSearchDocumentIndex",
    "SbertSearchEmbeddings",
    "SbertSearchReranker",
    "SbertSearchRetriever",
    "SbertSearchVectorStore",
]
