"""An index as Haystack's ``DocumentStore``: it reads, searches and writes documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from haystack import default_from_dict, default_to_dict
from haystack.dataclasses import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError

from sbert_search.errors import CorpusError, ModelMismatch, QueryError
from sbert_search.index.building.ingest import Mode
from sbert_search.integrations.collection import Collection, in_runs, in_thread
from sbert_search.integrations.haystack.documents import (
    NORM,
    REST,
    TIMES,
    VECTOR,
    document_of,
    record_of,
    vectors_of,
    where_of,
)
from sbert_search.integrations.records import OTHER, Conditions, Record, metadata_of
from sbert_search.search.options import SearchOptions
from sbert_search.search.results import Hits

Filters = Mapping[str, object]


# Dimension of a store whose first documents have no embedding, as in other stores of Haystack.
EMBEDDING_DIM = 768


class SbertSearchDocumentStore:
    """A document store on disk: every write is durable, and searches are exact by default.

    Args:
        path: Folder of the index, which is created if it does not exist. None: a temporary folder,
            which is deleted with this object.
        model: Name or folder of a model, which embeds documents that come without an embedding, and
            queries without a vector. None: the model of an existing index; a new index has none.
        embedding_dim: Dimension of the embeddings of a new index without a model; None: that of the
            first embedding that is written, or 768 if the first documents have none.
        return_embedding: Whether documents are returned with their embeddings. A store with a model
            never returns embeddings.

    Raises:
        ModelMismatch: The model is not the one that built the index; this is checked when the model
            is first used.
    """

    def __init__(
        self,
        path: str | None = None,
        model: str | None = None,
        embedding_dim: int | None = None,
        return_embedding: bool = True,
    ) -> None:
        self.collection = Collection(path, model, dim=None if model else embedding_dim)
        self.path, self.model, self.embedding_dim = path, model, embedding_dim
        self.return_embedding = return_embedding

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of the store; documents stay in its folder."""
        return default_to_dict(
            self,
            path=None if self.path is None else str(Path(self.path)),
            model=self.model,
            embedding_dim=self.embedding_dim,
            return_embedding=self.return_embedding,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SbertSearchDocumentStore:
        """Open the store that `to_dict` describes."""
        return default_from_dict(cls, data)

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
        try:
            return where_of(filters, self._columns)
        except QueryError as error:
            raise FilterError(str(error)) from error

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents durably; see `Collection.write`.

        Args:
            documents: The documents.
            policy: What to do with a document whose id the store holds: FAIL and NONE raise an
                error and write nothing, SKIP keeps the held document, OVERWRITE replaces it.

        Returns:
            The number of documents that were written.

        Raises:
            ValueError: ``documents`` is not a list of documents.
            DuplicateDocumentError: The policy is FAIL or NONE, and an id is held or occurs twice.
            ModelMismatch: An embedding has another dimension than the store.
            CorpusError: A value of the metadata cannot be stored, or its name is reserved.
        """
        if not isinstance(documents, list) or not all(isinstance(d, Document) for d in documents):
            raise ValueError("Please provide a list of Documents.")
        if policy == DuplicatePolicy.OVERWRITE:
            return self._write(documents, "upsert")
        new_ones = partial(self._new_ones, documents, fail=policy != DuplicatePolicy.SKIP)
        new = new_ones()
        while True:
            try:
                return self._write(new, "add")
            except CorpusError:
                if (still_new := new_ones()) == new:
                    raise
                new = still_new  # another writer has written some of them meanwhile

    def _write(self, documents: list[Document], mode: Mode) -> int:
        if not documents:
            return 0
        if self.has_model:
            self._write_by_model(documents, mode)
        else:
            dim = self.collection.dim or _dim_of(documents) or EMBEDDING_DIM
            _require_dim(documents, dim)
            records = [record_of(document, marks_vector=True) for document in documents]
            self.collection.write(records, vectors_of(documents, dim), mode=mode)
        return len(documents)

    def _new_ones(self, documents: list[Document], *, fail: bool) -> list[Document]:
        held = {record.doc_id for record in self.collection.get([d.id for d in documents])}
        new: dict[str, Document] = {}
        for document in documents:
            if document.id in held or document.id in new:
                if fail:
                    raise DuplicateDocumentError(f"ID '{document.id}' already exists.")
            else:
                new[document.id] = document
        return list(new.values())

    def _write_by_model(self, documents: list[Document], mode: Mode) -> None:
        if not any(document.embedding for document in documents):
            records = [record_of(document, marks_vector=False) for document in documents]
            self.collection.write(records, mode=mode)
            return
        _require_dim(documents, self.collection.embedder.dim)
        for run in in_runs(documents, lambda document: bool(document.embedding)):
            records = [record_of(document, marks_vector=False) for document in run]
            embeddings = [document.embedding for document in run]
            vectors = np.array(embeddings, np.float32) if run[0].embedding else None
            self.collection.write(records, vectors, mode=mode)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by id; unknown ids are ignored."""
        self.collection.delete(document_ids)

    def delete_all_documents(self, recreate_index: bool = False) -> None:
        """Delete all documents.

        Args:
            recreate_index: Also compact the index, so that the disk space is free at once.
        """
        self.collection.delete(where=self._columns.always)
        if recreate_index and (index := self.collection.index) is not None:
            index.compact()

    def delete_by_filter(self, filters: Filters) -> int:
        """Delete the documents that match a filter, and return their number."""
        where = self._where(filters)
        return self.collection.delete(where=where or self._columns.always)

    def update_by_filter(self, filters: Filters, meta: dict[str, Any]) -> int:
        """Set metadata of the documents that match a filter, and return their number.

        In a store with a model, documents that came with an embedding keep it. They are written in
        a commit of their own.
        """
        parts: tuple[list[Document], list[Document]] = [], []
        for record, vector in self.collection.with_given_vectors(self._where(filters)):
            embedding = None if vector is None else vector.tolist()
            found = document_of(record.doc_id, record.text, record.metadata, embedding=embedding)
            parts[vector is None].append(replace(found, meta={**found.meta, **meta}))
        return sum(self.write_documents(part, DuplicatePolicy.OVERWRITE) for part in parts)

    count_documents_async = in_thread(count_documents)
    filter_documents_async = in_thread(filter_documents)
    write_documents_async = in_thread(write_documents)
    delete_documents_async = in_thread(delete_documents)
    delete_all_documents_async = in_thread(delete_all_documents)
    delete_by_filter_async = in_thread(delete_by_filter)
    update_by_filter_async = in_thread(update_by_filter)
    count_documents_by_filter_async = in_thread(count_documents_by_filter)
    count_unique_metadata_by_filter_async = in_thread(count_unique_metadata_by_filter)
    get_metadata_fields_info_async = in_thread(get_metadata_fields_info)
    get_metadata_field_min_max_async = in_thread(get_metadata_field_min_max)
    get_metadata_field_unique_values_async = in_thread(get_metadata_field_unique_values)


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


def _dim_of(documents: Sequence[Document]) -> int | None:
    return next((len(each.embedding) for each in documents if each.embedding), None)


def _require_dim(documents: Sequence[Document], dim: int) -> None:
    for document in documents:
        if document.embedding and len(document.embedding) != dim:
            raise ModelMismatch(
                f"Document {document.id!r} has an embedding of {len(document.embedding)} "
                f"dimensions, and the store has {dim}. Embed all documents with one model; "
                "embedding_dim sets the dimension of a new store."
            )
