"""An index as a retriever of LangChain, in every mode, and as its ``DocumentIndex``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack, cast

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManager,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.indexing import UpsertResponse
from langchain_core.indexing.base import DeleteResponse, DocumentIndex
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, get_config_list, run_in_executor
from pydantic import ConfigDict, Field

from sbert_search.integrations.langchain.vectorstore import SbertSearchVectorStore, documents_of
from sbert_search.records import Where
from sbert_search.search.options import SearchKeywords, SearchMode


class SbertSearchRetriever(BaseRetriever):
    """Retrieves documents; the content of a long document is its best passage, not its whole text.

    Attributes:
        store: The store to search.
        k: Number of documents to return; ``invoke(query, k=...)`` replaces it.
        mode: auto, dense, lexical or hybrid; auto is hybrid if the index has lexical data.
        filter: Condition over the metadata; None: all documents.
        search_kwargs: Further fields of `SearchOptions`, such as ``diversity``, or ``k``.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    store: SbertSearchVectorStore
    k: int = 4
    mode: SearchMode = "auto"
    filter: Where | None = None
    search_kwargs: dict[str, object] = Field(default_factory=dict)

    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Retrieve for several queries, which are embedded together.

        If there are callbacks, or ``return_exceptions`` is set, each query is searched separately.
        """
        if inputs and (return_exceptions or _is_watched(config, len(inputs))):
            found = super().batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
            return cast("list[list[Document]]", found)
        k, chosen, keywords = self._asked(**kwargs)
        answers = self.store.hits_of_many(inputs, k, filter=chosen, **keywords)
        return list(map(documents_of, answers))

    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Do as `batch` in a thread."""
        find = partial(self.batch, return_exceptions=return_exceptions, **kwargs)
        return await run_in_executor(None, find, inputs, config)

    def _asked(
        self,
        k: int | None = None,
        filter: Where | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> tuple[int, Where | None, SearchKeywords]:
        """Return the arguments of a search; those of the call override those of this object."""
        known: dict[str, object] = {"mode": self.mode, "full_text": False, **self.search_kwargs}
        own_k = cast("int", known.pop("k", self.k))
        chosen = self.filter if filter is None else filter
        more = cast("SearchKeywords", {**known, **keywords})
        return own_k if k is None else k, chosen, more

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Where | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Document]:
        n, chosen, known = self._asked(k, filter, **keywords)
        return documents_of(self.store.hits(query, n, filter=chosen, **known))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Where | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Document]:
        find = partial(self._get_relevant_documents, run_manager=run_manager.get_sync())
        return await run_in_executor(None, partial(find, k=k, filter=filter, **keywords), query)


def _is_watched(config: RunnableConfig | list[RunnableConfig] | None, n_calls: int) -> bool:
    """Whether there are callbacks, such as those of a tracer, to be notified of each call."""
    several = isinstance(config, list)
    configs = get_config_list(config, n_calls) if several else [ensure_config(config)]
    callbacks = {id(each): each for each in (one.get("callbacks") for one in configs)}
    return any(CallbackManager.configure(each).handlers for each in callbacks.values())


class SbertSearchDocumentIndex(DocumentIndex):
    """Reads, writes and retrieves the documents of a store.

    Attributes:
        store: The store.
        top_k: Number of documents to retrieve for a query.
        mode: auto, dense, lexical or hybrid.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    store: SbertSearchVectorStore
    top_k: int = 4
    mode: SearchMode = "auto"

    def upsert(self, items: Sequence[Document], /, **kwargs: object) -> UpsertResponse:
        """Add documents; each replaces the document of the index that has its id."""
        ids = self.store.add_texts(
            [item.page_content for item in items],
            [item.metadata for item in items],
            ids=[item.id for item in items],
        )
        return UpsertResponse(succeeded=ids, failed=[])

    def delete(self, ids: list[str] | None = None, **kwargs: object) -> DeleteResponse:
        """Delete documents by id; unknown ids are ignored.

        Raises:
            ValueError: ``ids`` is None.
        """
        if ids is None:
            raise ValueError("Name the ids to delete.")
        held = [record.doc_id for record in self.store.collection.get(ids)]
        deleted = self.store.collection.delete(held)
        return DeleteResponse(succeeded=held, num_deleted=deleted, failed=[], num_failed=0)

    def get(self, ids: Sequence[str], /, **kwargs: object) -> list[Document]:
        """Read documents by id; absent ones are left out."""
        return self.store.get_by_ids(ids)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return documents_of(self.store.hits(query, self.top_k, mode=self.mode))
