"""An index as LlamaIndex's ``BasePydanticVectorStore``, with its metadata filters.

They match the same nodes as in ``SimpleVectorStore``. A node without a value matches only ``!=``,
``nin`` and ``is_empty``. ``contains``, ``any`` and ``all`` look for substrings in a text column,
and for items in a list column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from sbert_search.errors import QueryError
from sbert_search.index.filters.structured import all_of, any_of, none_of
from sbert_search.integrations.collection import Collection, in_thread
from sbert_search.integrations.llamaindex.models import SbertSearchEmbedding
from sbert_search.integrations.records import Conditions, Record, metadata_of
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import Fusion, SearchOptions
from sbert_search.search.results import Hits

_ORDERS = {
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
}
_NEGATED = {FilterOperator.NE: FilterOperator.EQ, FilterOperator.NIN: FilterOperator.IN}
_TEXT = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)


def where_of(filters: MetadataFilters | None, columns: Conditions) -> str | None:
    """Write filters as a condition; None: no filter."""
    if filters is None or not filters.filters:
        return None
    parts = [
        (where_of(each, columns) or columns.always)
        if isinstance(each, MetadataFilters)
        else _condition(each.operator, each, columns)
        for each in filters.filters
    ]
    if filters.condition == FilterCondition.OR:
        return any_of(parts)
    return none_of(any_of(parts)) if filters.condition == FilterCondition.NOT else all_of(parts)


def _condition(operator: FilterOperator, each: MetadataFilter, columns: Conditions) -> str:
    name, value = each.key, each.value
    if operator in _NEGATED:
        return none_of(_condition(_NEGATED[operator], each, columns))
    if operator in _ORDERS:
        return columns.compares(name, _ORDERS[operator], value)
    if operator == FilterOperator.IS_EMPTY:
        return any_of([columns.is_null(name), columns.equals(name, "")])
    if operator in _TEXT:
        if not isinstance(value, str):
            raise QueryError(f"The filter {operator.value} of {name!r} has {value!r}, not a text.")
        ignore_case = operator == FilterOperator.TEXT_MATCH_INSENSITIVE
        return columns.has_text(name, value, ignore_case=ignore_case)
    if operator == FilterOperator.CONTAINS:
        return _contains(name, value, columns)
    if operator == FilterOperator.EQ:
        return _equal(name, value, columns)
    if not isinstance(value, list):
        raise QueryError(f"The filter {operator.value} of {name!r} has {value!r}; it needs a list.")
    return _of_list(operator, name, value, columns)


def _equal(name: str, value: object, columns: Conditions) -> str:
    if isinstance(value, list):
        raise QueryError(
            f"The filter of {name!r} compares lists, which an index cannot; use any or all."
        )
    return columns.never if value is None else columns.equals(name, value)


def _of_list(
    operator: FilterOperator, name: str, values: Sequence[object], columns: Conditions
) -> str:
    if operator == FilterOperator.IN:
        return columns.is_in(name, values)
    parts = [_contains(name, item, columns) for item in values]
    if operator == FilterOperator.ANY:
        return any_of(parts) if parts else columns.never
    if operator == FilterOperator.ALL:
        return all_of(parts) if parts else none_of(columns.is_null(name))
    raise QueryError(f"The filter operator {operator!r} is unknown.")


def _contains(name: str, value: object, columns: Conditions) -> str:
    if columns.kind(name) == "string" and isinstance(value, str):
        return columns.has_text(name, value)
    return columns.contains(name, value)


PREFETCH = 4.0  # candidates of MMR for each node to return, as in other stores

_Mode = VectorStoreQueryMode
_LEXICAL = (_Mode.SPARSE, _Mode.TEXT_SEARCH)
_HYBRID = (_Mode.HYBRID, _Mode.SEMANTIC_HYBRID)
_NODE = ("_node_content", "_node_type")


class SbertSearchVectorStore(BasePydanticVectorStore):
    """A vector store on disk: every write is durable, and searches are exact by default.

    Args:
        path: Folder of the index, which is created if it does not exist. None: a temporary folder,
            which is deleted with this object.
        embed_model: The model that makes the embeddings of nodes and queries. The index remembers
            it and refuses another one. None: no check that one model made all embeddings.

    Raises:
        ModelMismatch: ``embed_model`` is not the one that built the index.
    """

    stores_text: bool = True
    path: str | None = None

    _collection: Collection = PrivateAttr()

    def __init__(
        self, path: str | None = None, embed_model: SbertSearchEmbedding | None = None
    ) -> None:
        super().__init__(stores_text=True, path=path)
        self._collection = Collection(path, None if embed_model is None else embed_model.embedder)

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex knows this class."""
        return "SbertSearchVectorStore"

    @property
    def client(self) -> SearchEngine | None:
        """The engine of the index; None: there is no index yet."""
        return self._collection.engine

    @property
    def collection(self) -> Collection:
        """The documents of the index."""
        return self._collection

    def add(self, nodes: Sequence[BaseNode], **kwargs: object) -> list[str]:
        """Add nodes durably; a node replaces the one that has its id."""
        records = [
            Record(
                node.node_id,
                node.get_content(metadata_mode=MetadataMode.NONE) or "",
                node_to_metadata_dict(node, remove_text=True, flat_metadata=False),
            )
            for node in nodes
        ]
        if records:
            vectors = np.array([node.get_embedding() for node in nodes], np.float32)
            self._collection.write(records, vectors)
        return [record.doc_id for record in records]

    async_add = in_thread(add)

    def delete(self, ref_doc_id: str, **delete_kwargs: object) -> None:
        """Delete the nodes of a source document."""
        self._collection.delete(where=self._columns.equals("ref_doc_id", ref_doc_id))

    adelete = in_thread(delete)

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: object,
    ) -> None:
        """Delete the nodes of these ids that meet the filters.

        Raises:
            QueryError: Neither ids nor filters are given. ``SimpleVectorStore`` would delete all
                nodes, which is what `clear` does.
        """
        where = self._where(node_ids, filters)
        if where is None:
            raise QueryError(
                "delete_nodes got neither node_ids nor filters; name the nodes to delete, or call "
                "clear to delete all."
            )
        self._collection.delete(where=where)

    adelete_nodes = in_thread(delete_nodes)

    def clear(self) -> None:
        """Delete all nodes."""
        self._collection.delete(where=self._columns.always)

    aclear = in_thread(clear)

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Read the nodes of these ids that meet the filters, in the order of their writing."""
        records = self._collection.documents(self._where(node_ids, filters))
        return [_node(record.doc_id, record.metadata, record.text) for record in records]

    aget_nodes = in_thread(get_nodes)

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Search in the modes default, sparse, text_search, hybrid, semantic_hybrid and mmr.

        Args:
            query: The query. ``alpha`` is the weight of the vectors in hybrid search, 0.5 if None.
            kwargs: For mmr only. ``mmr_threshold`` is from 0 (most diverse) to 1 (nearest), 0.5 by
                default. ``mmr_prefetch_k`` is the number of nodes to choose from; by default, it is
                ``mmr_prefetch_factor`` (4 by default) times the number of nodes to return. It is
                never below the number of nodes to return.

        Raises:
            QueryError: The mode is unknown, or the query lacks its text or vector.
        """
        k = query.similarity_top_k
        if query.mode == _Mode.MMR:
            return self._mmr(query, kwargs)
        if query.mode in _LEXICAL:
            k = query.sparse_top_k or k
        elif query.mode in _HYBRID:
            k = query.hybrid_top_k or k
        elif query.mode != _Mode.DEFAULT:
            raise QueryError(
                f"The query mode {query.mode.value!r} is not supported; use default, sparse, "
                "text_search, hybrid, semantic_hybrid or mmr."
            )
        return _result(self._hits(query, k))

    aquery = in_thread(query)

    def _hits(self, query: VectorStoreQuery, k: int) -> Hits:
        # `VectorStoreIndex` passes an empty list of ids if it means all nodes.
        where = self._where(query.node_ids or None, query.filters, query.doc_ids)
        text, embedding = query.query_str, query.query_embedding
        vector = None if embedding is None else np.array(embedding, np.float32)
        options = SearchOptions(k=k, where=where, mode="dense", syntax="plain", full_text=True)
        if query.mode in (*_LEXICAL, *_HYBRID):
            if text is None:
                raise QueryError(f"The query mode {query.mode.value!r} needs query_str.")
            if query.mode in _LEXICAL:
                lexical = options.with_keywords(k, mode="lexical")
                return self._collection.search(text, lexical)
            fusion = Fusion(dense_weight=0.5 if query.alpha is None else query.alpha)
            hybrid = options.with_keywords(k, mode="hybrid", fusion=fusion)
            return self._collection.search(text, hybrid, vector=vector)
        if vector is None:
            raise QueryError(f"The query mode {query.mode.value!r} needs query_embedding.")
        return self._collection.search(vector, options)

    def _mmr(self, query: VectorStoreQuery, settings: dict[str, Any]) -> VectorStoreQueryResult:
        k, factor = query.similarity_top_k, settings.get("mmr_prefetch_factor", PREFETCH)
        n_candidates = max(k, int(settings.get("mmr_prefetch_k") or k * factor))
        hits, vectors = self._collection.with_vectors(self._hits(query, n_candidates))
        if not hits:
            return _result(hits)
        scores, chosen = get_top_k_mmr_embeddings(
            cast("list[float]", query.query_embedding),
            list(vectors),
            similarity_top_k=k,
            embedding_ids=list(range(len(hits))),
            mmr_threshold=settings.get("mmr_threshold", query.mmr_threshold),
        )
        result = _result(Hits(hits[row] for row in chosen))
        result.similarities = list(map(float, scores))
        return result

    @property
    def _columns(self) -> Conditions:
        return Conditions(self._collection.columns)

    def _where(
        self,
        node_ids: Sequence[str] | None,
        filters: MetadataFilters | None,
        doc_ids: Sequence[str] | None = None,
    ) -> str | None:
        if node_ids is None and not doc_ids and filters is None:
            return None
        columns = self._columns
        parts = [] if node_ids is None else [columns.id_in(node_ids)]
        if doc_ids:
            parts.append(columns.is_in("ref_doc_id", doc_ids))
        if (where := where_of(filters, columns)) is not None:
            parts.append(where)
        return all_of(parts) if parts else None


def _result(hits: Hits) -> VectorStoreQueryResult:
    return VectorStoreQueryResult(
        nodes=[_node(hit.doc_id, metadata_of(hit.metadata, hit.title), hit.text) for hit in hits],
        similarities=[hit.score for hit in hits],
        ids=[hit.doc_id for hit in hits],
    )


def _node(doc_id: str, metadata: Mapping[str, object], text: str) -> BaseNode:
    """Return the node that was added; a document not added as a node becomes a `TextNode`."""
    if not all(name in metadata for name in _NODE):
        return TextNode(id_=doc_id, text=text, metadata=dict(metadata))
    return metadata_dict_to_node({name: metadata[name] for name in _NODE}, text)
