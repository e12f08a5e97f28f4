"""A retriever of LangChain in all modes of an index."""

from __future__ import annotations

from functools import partial
from typing import Unpack, cast

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field

from sbert_search.integrations.langchain.filters import Filter
from sbert_search.integrations.langchain.vectorstore import SbertSearchVectorStore, documents_of
from sbert_search.search.options import SearchKeywords, SearchMode


class SbertSearchRetriever(BaseRetriever):
    """Retrieves passages: of a long document, the best passage and not the whole text.

    Attributes:
        store: The store to search.
        k: Documents to return; ``invoke(query, k=...)`` replaces it.
        mode: auto, dense, lexical or hybrid; auto is hybrid if the index has lexical data.
        filter: Over the metadata.
        search_kwargs: Further fields of `SearchOptions`, such as ``diversity``.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    store: SbertSearchVectorStore
    k: int = 4
    mode: SearchMode = "auto"
    filter: Filter | None = None
    search_kwargs: dict[str, object] = Field(default_factory=dict)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Filter | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Document]:
        known = cast(
            "SearchKeywords",
            {"mode": self.mode, "full_text": False, **self.search_kwargs, **keywords},
        )
        chosen = self.filter if filter is None else filter
        return documents_of(self.store.hits(query, k or self.k, filter=chosen, **known))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Filter | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Document]:
        find = partial(self._get_relevant_documents, run_manager=run_manager.get_sync())
        return await run_in_executor(None, partial(find, k=k, filter=filter, **keywords), query)
