"""The part of the document store that reads: documents, their metadata, searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from haystack.dataclasses import Document
from haystack.errors import FilterError

from sbert_search.errors import CorpusError, QueryError
from sbert_search.integrations.collection import Collection
from sbert_search.integrations.conditions import Conditions
from sbert_search.integrations.haystack.documents import NORM, REST, VECTOR, document_of
from sbert_search.integrations.haystack.filters import TIMES, where_of
from sbert_search.integrations.records import OTHER, Record, metadata_of
from sbert_search.search.options import SearchOptions
from sbert_search.search.results import Hits

Filters = Mapping[str, object]


class ReadableStore:
    """Reads the documents of a collection.

    Args:
        collection: The documents.
        model: The model that a new index will have; None: it will have no model.
        return_embedding: Whether documents are returned with their embeddings.
    """

    def __init__(self, collection: Collection, model: str | None, return_embedding: bool) -> None:
        self.collection, self.model = collection, model
        self.return_embedding = return_embedding

    @property
    def has_model(self) -> bool:
        """Whether the index embeds texts."""
        if self.model is not None:
            return True
        index = self.collection.seen or self.collection.index
        return index is not None and index.identity.is_model

    def count_documents(self) -> int:
        """Count the documents."""
        return len(self.collection)

    def filter_documents(self, filters: Filters | None = None) -> list[Document]:
        """Return the documents that match a filter, in the order in which they were written.

        Raises:
            FilterError: The filter is wrong.
        """
        return self._documents(self.collection.documents(self._where(filters)))

    def count_documents_by_filter(self, filters: Filters) -> int:
        """Count the documents that match a filter."""
        return self.collection.count(self._where(filters))

    def count_unique_metadata_by_filter(
        self, filters: Filters, metadata_fields: list[str]
    ) -> dict[str, int]:
        """Count the different values of metadata fields among documents that match a filter."""
        found = self.filter_documents(filters)
        return {
            name: len(_different(found, name.removeprefix("meta."))) for name in metadata_fields
        }

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the type of each metadata field that has a column."""
        hidden = (OTHER, VECTOR, NORM, REST)
        columns = self.collection.columns.items() if self.count_documents() else ()
        return {
            name: {"type": str(kind)}
            for name, kind in columns
            if name not in hidden and not name.startswith(TIMES)
        }

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the lowest and the highest value of a field; None if no document has a value.

        Raises:
            CorpusError: The values of the field have no common order.
        """
        name = metadata_field.removeprefix("meta.")
        values = _different(self.filter_documents(), name)
        with _comparing(values, name):
            return {"min": min(values, default=None), "max": max(values, default=None)}

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: Filters | None = None,
    ) -> tuple[list[Any], int]:
        """Return a page of the different values of a field, sorted, and the number of all of them.

        Args:
            metadata_field: Name of the field.
            search_term: Only values with this text in them count; None: all values.
            from_: Number of values before the page.
            size: Maximum number of values of the page.
            filters: Only documents that match it count; None: all documents.

        Raises:
            CorpusError: The values of the field have no common order.
            FilterError: The filter is wrong.
        """
        name = metadata_field.removeprefix("meta.")
        values = _different(self.filter_documents(filters), name)
        with _comparing(values, name):
            values.sort()
        if search_term:
            values = [value for value in values if search_term.lower() in str(value).lower()]
        return values[from_ : from_ + size], len(values)

    def search(
        self,
        query: str | None,
        options: SearchOptions,
        *,
        filters: Filters | None = None,
        query_embedding: Sequence[float] | None = None,
    ) -> list[Document]:
        """Search by a text, a vector or both, as the retrievers do.

        In a store without a model, dense search leaves out the documents that have no embedding or
        one with all components 0.
        """
        where = self._where(filters)
        by_vector = options.mode == "dense" and not self.has_model
        if by_vector and VECTOR in self.collection.columns:
            with_vector = f'"{VECTOR}" IS NULL'
            where = f"({where}) AND {with_vector}" if where else with_vector
        vector = None if query_embedding is None else np.array(query_embedding, np.float32)
        options = replace(options, where=where)
        if query is None:
            assert vector is not None
            hits = self.collection.search(vector, options)
        else:
            hits = self.collection.search(query, options, vector=vector)
        return self._found(hits)

    def _found(self, hits: Hits) -> list[Document]:
        vectors = self._embeddings([hit.doc_id for hit in hits])
        return [
            document_of(
                hit.doc_id,
                hit.text,
                metadata_of(hit.metadata, hit.title),
                embedding=vector,
                score=hit.score,
            )
            for hit, vector in zip(hits, vectors, strict=True)
        ]

    def _documents(self, records: list[Record]) -> list[Document]:
        vectors = self._embeddings([record.doc_id for record in records])
        return [
            document_of(record.doc_id, record.text, record.metadata, embedding=vector)
            for record, vector in zip(records, vectors, strict=True)
        ]

    def _embeddings(self, ids: list[str]) -> Sequence[list[float] | None]:
        index = self.collection.seen
        if index is None or not (ids and self.return_embedding) or self.has_model:
            return [None] * len(ids)
        state = index.state
        rows = state.lookup(ids)
        vectors = iter(state.vectors(rows[rows >= 0]).tolist())
        # A document may have been deleted since it was found.
        return [next(vectors) if row >= 0 else None for row in rows.tolist()]

    @property
    def _columns(self) -> Conditions:
        return Conditions(self.collection.columns)

    def _where(self, filters: Filters | None) -> str | None:
        if not filters:
            return None
        try:
            return where_of(filters, self._columns)
        except QueryError as error:
            raise FilterError(str(error)) from error


def _different(documents: Sequence[Document], name: str) -> list[Any]:
    values = (document.meta.get(name) for document in documents)
    items = chain.from_iterable(value if isinstance(value, list) else [value] for value in values)
    different = [item for item in items if item is not None]
    with _comparing(different, name):
        return list(dict.fromkeys(different))


@contextmanager
def _comparing(values: Sequence[object], name: str) -> Iterator[None]:
    """Turn the TypeError of a comparison in this block into an error that names the field."""
    try:
        yield
    except TypeError as error:
        kinds = " and ".join(sorted({type(value).__name__ for value in values}))
        raise CorpusError(
            f"The values of the field {name!r} cannot be compared: they have the types {kinds}. "
            "Give all values of a field one type: text, number, flag or date."
        ) from error
