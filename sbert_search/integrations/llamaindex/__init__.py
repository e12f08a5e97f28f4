"""LlamaIndex: vector store, embedding model and reranking postprocessor."""

from sbert_search.integrations.requirements import extra

with extra("llamaindex"):
    from sbert_search.integrations.llamaindex.models import SbertSearchEmbedding, SbertSearchRerank
    from sbert_search.integrations.llamaindex.vector_store import SbertSearchVectorStore

__all__ = ["SbertSearchEmbedding", "SbertSearchRerank", "SbertSearchVectorStore"]
