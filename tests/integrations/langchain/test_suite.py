"""LangChain's own suites: vector store, retriever, embeddings and document index."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing.base import DocumentIndex
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.integration_tests.indexer import (
    AsyncDocumentIndexTestSuite,
    DocumentIndexerTestSuite,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests

from sbert_search.integrations.langchain import (
    SbertSearchDocumentIndex,
    SbertSearchEmbeddings,
    SbertSearchRetriever,
    SbertSearchVectorStore,
)


class TestVectorStoreWithOtherEmbeddings(VectorStoreIntegrationTests):
    """Vectors come from the suite's embeddings."""

    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return SbertSearchVectorStore(self.get_embeddings())


class TestVectorStoreWithOwnModel(VectorStoreIntegrationTests):
    """The index embeds the texts."""

    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return SbertSearchVectorStore(SbertSearchEmbeddings("hashing"))


class _Retrievers(RetrieversIntegrationTests):
    mode = "auto"

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return SbertSearchRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, object]:
        store = SbertSearchVectorStore(SbertSearchEmbeddings("hashing"))
        store.add_documents([Document(page_content=f"tide number {n}") for n in range(5)])
        return {"store": store, "k": 2, "mode": self.mode}

    @property
    def retriever_query_example(self) -> str:
        return "tide"


class TestHybridRetriever(_Retrievers):
    """Mode auto, which is hybrid."""


class TestDenseRetriever(_Retrievers):
    """Vectors only."""

    mode = "dense"


class TestLexicalRetriever(_Retrievers):
    """Words only."""

    mode = "lexical"


class _Embeddings:
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return SbertSearchEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, object]:
        return {"model": "hashing"}


class TestEmbeddingsUnit(_Embeddings, EmbeddingsUnitTests):
    """The suite without a network."""


class TestEmbeddingsIntegration(_Embeddings, EmbeddingsIntegrationTests):
    """The suite that embeds."""


def _document_index() -> DocumentIndex:
    return SbertSearchDocumentIndex(store=SbertSearchVectorStore(SbertSearchEmbeddings("hashing")))


class TestDocumentIndex(DocumentIndexerTestSuite):
    """The synchronous methods."""

    @pytest.fixture
    def index(self) -> DocumentIndex:
        return _document_index()


class TestAsyncDocumentIndex(AsyncDocumentIndexTestSuite):
    """The asynchronous methods."""

    @pytest.fixture
    def index(self) -> DocumentIndex:
        return _document_index()
