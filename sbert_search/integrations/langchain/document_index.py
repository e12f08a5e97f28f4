"""An index as LangChain's ``DocumentIndex``."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.indexing import UpsertResponse
from langchain_core.indexing.base import DeleteResponse, DocumentIndex
from pydantic import ConfigDict

from sbert_search.integrations.langchain.vectorstore import SbertSearchVectorStore, documents_of
from sbert_search.search.options import SearchMode


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
