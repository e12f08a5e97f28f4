"""LangChain: vector store, embeddings, retriever, reranker and document index."""

from sbert_search.integrations.requirements import extra

with extra("langchain"):
    from sbert_search.integrations.langchain.document_index import SbertSearchDocumentIndex
    from sbert_search.integrations.langchain.embeddings import SbertSearchEmbeddings
    from sbert_search.integrations.langchain.reranker import SbertSearchReranker
    from sbert_search.integrations.langchain.retriever import SbertSearchRetriever
    from sbert_search.integrations.langchain.vectorstore import SbertSearchVectorStore

__all__ = [
    "SbertSearchDocumentIndex",
    "SbertSearchEmbeddings",
    "SbertSearchReranker",
    "SbertSearchRetriever",
    "SbertSearchVectorStore",
]
