"""LlamaIndex: vector store, embedding model and reranking postprocessor."""

from sbert_search.integrations.requirements import extra

with extra("llamaindex"):
    from sbert_search.integrations.llamaindex.embedding import SbertSearchEmbedding
    from sbert_search.integrations.llamaindex.rerank import SbertSearchRerank
    from sbert_search.integrations.llamaindex.vector_store import SbertSearchVectorStore

__all__ = ["SbertSearchEmbedding", "SbertSearchRerank", "SbertSearchVectorStore"]
