"""Retrievers of Haystack: by embedding, by words (BM25), and by both."""

from __future__ import annotations

from typing import Any, Self, TypeAlias

from haystack import component, default_from_dict, default_to_dict
from haystack.dataclasses import Document
from haystack.document_stores.types import FilterPolicy, apply_filter_policy

from sbert_search.integrations.collection import in_thread
from sbert_search.integrations.haystack.document_store import Filters, SbertSearchDocumentStore
from sbert_search.search.options import SearchMode, SearchOptions

RunFilters: TypeAlias = dict[str, Any] | None
"""Conditions in Haystack's form; None: all documents."""


class _Retriever:
    """The arguments that all retrievers share.

    Args:
        document_store: The store to search.
        filters: Conditions over the metadata; None: all documents.
        top_k: Number of documents to return.
        filter_policy: Whether the filters of a call replace ``filters`` or are joined with them.
    """

    def __init__(
        self,
        document_store: SbertSearchDocumentStore,
        filters: RunFilters = None,
        top_k: int = 10,
        filter_policy: FilterPolicy = FilterPolicy.REPLACE,
    ) -> None:
        if not isinstance(document_store, SbertSearchDocumentStore):
            raise TypeError("document_store must be an instance of SbertSearchDocumentStore")
        if top_k < 1:
            raise ValueError(f"top_k must be greater than 0, but got {top_k}")
        self.document_store, self.filters, self.top_k = document_store, filters, top_k
        self.filter_policy = filter_policy

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of the component."""
        return default_to_dict(
            self,
            document_store=self.document_store,
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make the component that `to_dict` describes."""
        parameters = data.get("init_parameters", {})
        if "filter_policy" in parameters:
            parameters["filter_policy"] = FilterPolicy.from_str(parameters["filter_policy"])
        if isinstance(store := parameters.get("document_store"), dict):
            parameters["document_store"] = SbertSearchDocumentStore.from_dict(store)
        return default_from_dict(cls, data)

    def _found(
        self,
        mode: SearchMode,
        query: str | None,
        query_embedding: list[float] | None,
        filters: Filters | None,
        top_k: int | None,
    ) -> dict[str, list[Document]]:
        chosen = apply_filter_policy(self.filter_policy, self.filters, filters)
        k = self.top_k if top_k is None else top_k
        options = SearchOptions(k=k, mode=mode, syntax="plain", full_text=True)
        search = self.document_store.search
        found = search(query, options, filters=chosen, query_embedding=query_embedding)
        return {"documents": found}


@component
class SbertSearchEmbeddingRetriever(_Retriever):
    """Finds the documents whose embeddings are nearest to that of the query."""

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: RunFilters = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Find documents by the embedding of a query."""
        return self._found("dense", None, query_embedding, filters, top_k)

    run_async = in_thread(run)


@component
class SbertSearchBM25Retriever(_Retriever):
    """Finds documents by the words of the query."""

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        filters: RunFilters = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Find documents by the words of a query."""
        return self._found("lexical", query, None, filters, top_k)

    run_async = in_thread(run)


@component
class SbertSearchHybridRetriever(_Retriever):
    """Finds documents by the embedding and the words of the query, and fuses both rankings."""

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        query_embedding: list[float] | None = None,
        filters: RunFilters = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Find documents; without ``query_embedding``, the model of the store embeds the query."""
        return self._found("hybrid", query, query_embedding, filters, top_k)

    run_async = in_thread(run)
