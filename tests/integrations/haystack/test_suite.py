"""Haystack's own suites, with and without a model of the index."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from haystack.dataclasses import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.testing import document_store as suites
from haystack.testing import document_store_async as async_suites

from sbert_search.integrations.haystack import SbertSearchDocumentStore


class _Equal:
    """Embeddings are stored as float32; those of the index's model are not returned."""

    returns_embeddings = True

    @classmethod
    def assert_documents_are_equal(
        cls, received: Sequence[Document], expected: Sequence[Document]
    ) -> None:
        assert len(received) == len(expected)
        for mine, theirs in zip(received, expected, strict=True):
            rest = {name: value for name, value in mine.to_dict().items() if name != "embedding"}
            assert rest == {n: v for n, v in theirs.to_dict().items() if n != "embedding"}
            if cls.returns_embeddings and theirs.embedding is not None:
                assert mine.embedding == pytest.approx(theirs.embedding, rel=1e-6)
            else:
                assert mine.embedding is None


class TestStore(
    _Equal,
    suites.DocumentStoreBaseExtendedTests,
    suites.CountDocumentsByFilterTest,
    suites.CountUniqueMetadataByFilterTest,
    suites.GetMetadataFieldsInfoTest,
    suites.GetMetadataFieldMinMaxTest,
    suites.GetMetadataFieldUniqueValuesTest,
):
    """The base and extended suites and all further ones, with embeddings of the documents."""

    @pytest.fixture
    def document_store(self) -> SbertSearchDocumentStore:
        return SbertSearchDocumentStore()

    def test_write_documents(self, document_store: SbertSearchDocumentStore) -> None:
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document], DuplicatePolicy.NONE)
        assert document_store.count_documents() == 1

    @pytest.mark.xfail(strict=True, reason="All values of one name must have one type.")
    def test_get_metadata_field_unique_values_distinct_types(
        self, document_store: SbertSearchDocumentStore
    ) -> None:
        document_store.write_documents([Document(meta={"p": 1}), Document(meta={"p": "1"})])


class TestStoreWithModel(_Equal, suites.DocumentStoreBaseExtendedTests):
    """The base and extended suites on an index that embeds the documents."""

    returns_embeddings = False

    @pytest.fixture
    def document_store(self) -> SbertSearchDocumentStore:
        return SbertSearchDocumentStore(model="hashing:768")

    def test_write_documents(self, document_store: SbertSearchDocumentStore) -> None:
        assert document_store.write_documents([Document(content="test doc")]) == 1
        assert document_store.has_model


class TestAsyncStore(
    _Equal,
    async_suites.CountDocumentsAsyncTest,
    async_suites.WriteDocumentsAsyncTest,
    async_suites.DeleteDocumentsAsyncTest,
    async_suites.DeleteAllAsyncTest,
    async_suites.DeleteByFilterAsyncTest,
    async_suites.UpdateByFilterAsyncTest,
    async_suites.FilterDocumentsAsyncTest,
    async_suites.CountDocumentsByFilterAsyncTest,
    async_suites.CountUniqueMetadataByFilterAsyncTest,
    async_suites.GetMetadataFieldsInfoAsyncTest,
    async_suites.GetMetadataFieldMinMaxAsyncTest,
    async_suites.GetMetadataFieldUniqueValuesAsyncTest,
):
    """All asynchronous suites."""

    @pytest.fixture
    def document_store(self) -> SbertSearchDocumentStore:
        return SbertSearchDocumentStore()

    @pytest.mark.asyncio
    async def test_write_documents_async(self, document_store: SbertSearchDocumentStore) -> None:
        assert await document_store.write_documents_async([Document(content="test doc")]) == 1

    @pytest.mark.asyncio
    @pytest.mark.xfail(strict=True, reason="All values of one name must have one type.")
    async def test_get_metadata_field_unique_values_distinct_types_async(
        self, document_store: SbertSearchDocumentStore
    ) -> None:
        documents = [Document(meta={"p": 1}), Document(meta={"p": "1"})]
        await document_store.write_documents_async(documents)
