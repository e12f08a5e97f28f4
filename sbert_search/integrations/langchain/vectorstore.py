"""An index as LangChain's ``VectorStore``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Unpack
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from sbert_search.errors import ModelMismatch, QueryError
from sbert_search.index.building.build import BuildKeywords
from sbert_search.index.filters.structured import condition_text
from sbert_search.integrations.collection import Collection
from sbert_search.integrations.langchain.models import SbertSearchEmbeddings
from sbert_search.integrations.records import Conditions, Record, metadata_of
from sbert_search.records import Hit, Where
from sbert_search.search.options import SearchKeywords, SearchOptions
from sbert_search.search.ordering import PairScorer
from sbert_search.search.results import Hits

_SAME = 0.99  # lowest cosine of a text's new and stored vectors, if the same model made both


class SbertSearchVectorStore(VectorStore):
    """A vector store on disk: every write is durable, and searches are exact by default.

    Args:
        embedding: Embeds texts. An index remembers the model of `SbertSearchEmbeddings` and refuses
            another one. Vectors of other embeddings are compared with the index at the first use.
            None: the model of an existing index, else the default model of `Embedder`.
        path: Folder of the index, which is created if it does not exist. None: a temporary folder,
            which is deleted with this object.
        reranker: Scores the first hits of each search again, such as a `Reranker`.
        settings: Fields of `BuildSettings` for a new index, such as ``lexical``.

    Raises:
        ModelMismatch: The model of ``embedding`` is not the one that built the index.
    """

    def __init__(
        self,
        embedding: Embeddings | None = None,
        path: str | Path | None = None,
        *,
        reranker: PairScorer | None = None,
        **settings: Unpack[BuildKeywords],
    ) -> None:
        if embedding is None and (path is None or not _holds_index(Path(path))):
            embedding = SbertSearchEmbeddings()
        model = embedding.embedder if isinstance(embedding, SbertSearchEmbeddings) else None
        self._embedding = embedding
        self._foreign = embedding is not None and model is None
        self._compared = not self._foreign
        self.collection = Collection(path, model, reranker=reranker, **settings)

    @property
    def embeddings(self) -> Embeddings:
        """The embeddings of the store."""
        if self._embedding is None:
            self._embedding = SbertSearchEmbeddings(self.collection.embedder)
        return self._embedding

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[dict[str, object]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: object,
    ) -> list[str]:
        """Add texts durably; a text replaces the one that has its id.

        Args:
            texts: The texts.
            metadatas: One mapping for each text.
            ids: One id for each text; a text whose id is None gets a new UUID. None: all texts do.
            kwargs: Ignored.

        Returns:
            The ids.

        Raises:
            ValueError: The numbers of texts, mappings and ids differ.
            CorpusError: A value of the metadata cannot be stored.
        """
        texts = list(texts)
        for name, given in (("metadatas", metadatas), ("ids", ids)):
            if given is not None and len(given) != len(texts):
                raise ValueError(
                    f"There are {len(texts)} texts and {len(given)} {name}; pass one for each."
                )
        given_ids = [None] * len(texts) if ids is None else ids
        names = [str(uuid4()) if doc_id is None else doc_id for doc_id in given_ids]
        each = [{}] * len(texts) if metadatas is None else metadatas
        vectors = None
        if self._foreign and texts:
            self._compare()
            vectors = np.array(self.embeddings.embed_documents(texts), np.float32)
        self.collection.write(list(map(Record, names, texts, each)), vectors)
        return names

    def _compare(self) -> None:
        """Embed a text of the index again, and refuse another vector than the stored one."""
        if self._compared or (example := self.collection.example()) is None:
            return
        text, stored = example
        again = np.array(self.embeddings.embed_documents([text])[0], np.float32)
        same_dim = len(again) == len(stored)
        norms = float(np.linalg.norm(again) * np.linalg.norm(stored))
        if not same_dim or (norms and float(again @ stored) / norms < _SAME):
            differs = "another vector" if same_dim else f"a vector of {len(again)} dimensions"
            raise ModelMismatch(
                f"{type(self.embeddings).__name__} gives {differs} for a text of "
                f"{self.collection.path}, whose vector there has {len(stored)} dimensions. Pass "
                "the embeddings that built the index."
            )
        self._compared = True

    def delete(
        self, ids: Sequence[str] | None = None, *, filter: Where | None = None, **kwargs: object
    ) -> bool:
        """Delete the documents of these ids that match the filter; unknown ids are ignored.

        Args:
            ids: The ids; None: all ids.
            filter: As for `similarity_search`.
            kwargs: Ignored.

        Raises:
            QueryError: The filter is wrong, or is empty and no ids are given.
        """
        columns = self._columns
        where = condition_text(filter, columns) if filter else None
        if ids is None and filter is not None and where is None:
            raise QueryError("The filter is empty; leave it out to delete all documents.")
        if ids is None:
            self.collection.delete(where=where or columns.always)
        elif where is None:
            self.collection.delete(ids)
        else:
            self.collection.delete(where=f"{columns.id_in(ids)} AND ({where})")
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Read documents by id, in the order of the ids; absent ones are left out."""
        return [
            Document(id=record.doc_id, page_content=record.text, metadata=dict(record.metadata))
            for record in self.collection.get(ids)
        ]

    def similarity_search(
        self,
        query: str,
        k: int = 4,
        *,
        filter: Where | None = None,
        **kwargs: Unpack[SearchKeywords],
    ) -> list[Document]:
        """Find the documents nearest to a query.

        Args:
            query: The query.
            k: Number of documents to return.
            filter: As for `Index.documents`, or a mapping, in which a name that no document has
                matches nothing; None: all documents.
            kwargs: Fields of `SearchOptions`, such as ``mode="hybrid"``; the default mode is dense.

        Raises:
            QueryError: The filter or an option is wrong, or the query is blank.
        """
        return documents_of(self.hits(query, k, filter=filter, **kwargs))

    def similarity_search_with_score(
        self,
        query: str,
        k: int = 4,
        *,
        filter: Where | None = None,
        **kwargs: Unpack[SearchKeywords],
    ) -> list[tuple[Document, float]]:
        """Return the documents of `similarity_search` with their scores; higher is better.

        The score is the cosine for an index with the metric cosine, which is the default.
        """
        hits = self.hits(query, k, filter=filter, **kwargs)
        return [(document_of(hit), hit.score) for hit in hits]

    def similarity_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        *,
        filter: Where | None = None,
        **kwargs: Unpack[SearchKeywords],
    ) -> list[Document]:
        """Find the documents nearest to a vector; arguments as for `similarity_search`."""
        return documents_of(self._by_vector(embedding, k, filter, kwargs))

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Where | None = None,
        **kwargs: Unpack[SearchKeywords],
    ) -> list[Document]:
        """Find documents by maximal marginal relevance: near to a query and unlike each other.

        Args:
            query: The query.
            k: Number of documents to return.
            fetch_k: Number of documents to choose from.
            lambda_mult: Weight of the nearness to the query, from 0 (most diverse) to 1 (nearest).
            filter: As for `similarity_search`.
            kwargs: As for `similarity_search`.
        """
        self._compare()  # also in lexical mode, since vectors of hits are compared with the query's
        hits = self.hits(query, max(k, fetch_k), filter=filter, **kwargs)
        return self._unlike(hits, self.embeddings.embed_query(query), k, lambda_mult)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Where | None = None,
        **kwargs: Unpack[SearchKeywords],
    ) -> list[Document]:
        """Do as `max_marginal_relevance_search` with a vector in place of the query."""
        hits = self._by_vector(embedding, max(k, fetch_k), filter, kwargs)
        return self._unlike(hits, embedding, k, lambda_mult)

    def _unlike(
        self, found: Hits, embedding: Sequence[float], k: int, lambda_mult: float
    ) -> list[Document]:
        """Choose hits that are near to a vector and unlike each other."""
        hits, vectors = self.collection.with_vectors(found)
        if not hits:
            return []
        chosen = maximal_marginal_relevance(np.array(embedding), vectors, lambda_mult, k)
        return [document_of(hits[row]) for row in chosen]

    def hits(
        self,
        query: str,
        k: int = 4,
        *,
        filter: Where | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Hits:
        """Search as `similarity_search`, and return hits with the score of every stage."""
        options = self.options(k, filter, keywords)
        if not self._foreign or options.mode == "lexical":
            return self.collection.search(query, options)
        self._compare()
        vector = np.array(self.embeddings.embed_query(query), np.float32)
        return self.collection.search(query, options, vector=vector)

    def hits_of_many(
        self,
        queries: Sequence[str],
        k: int = 4,
        *,
        filter: Where | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Iterator[Hits]:
        """Search as `hits` by several queries, which the model of an index embeds together."""
        if self._foreign:
            return (self.hits(query, k, filter=filter, **keywords) for query in queries)
        return self.collection.iter_hits(queries, self.options(k, filter, keywords))

    def options(self, k: int, filter: Where | None, keywords: SearchKeywords) -> SearchOptions:
        """Return the options of a search.

        Raises:
            QueryError: Both ``filter`` and ``where`` are given, or an option is wrong.
        """
        if filter is not None and keywords.get("where"):
            raise QueryError("Pass either filter or where, which mean the same.")
        merged: SearchKeywords = {"mode": "dense", "syntax": "plain", "full_text": True, **keywords}
        if filter is not None:
            merged["where"] = condition_text(filter, self._columns) if filter else None
        return SearchOptions().with_keywords(k, **merged)

    def _by_vector(
        self,
        embedding: Sequence[float],
        k: int,
        filter: Where | None,
        keywords: SearchKeywords,
    ) -> Hits:
        vector = np.array(embedding, np.float32)
        return self.collection.search(vector, self.options(k, filter, keywords))

    @property
    def _columns(self) -> Conditions:
        return Conditions(self.collection.columns)

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: object
    ) -> list[tuple[Document, float]]:
        if kwargs.get("mode", "dense") != "dense" or self.collection.reranker is not None:
            raise QueryError(
                "Only a dense search without a reranker has relevance scores; use "
                "similarity_search_with_score."
            )
        return super()._similarity_search_with_relevance_scores(query, k, **kwargs)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """Return the function that maps scores to 0..1; a negative cosine becomes 0."""
        index = self.collection.index
        if index is not None and index.state.settings.metric != "cosine":
            raise QueryError(
                f"The scores of the metric {index.state.settings.metric} have no fixed range, so "
                "there are no relevance scores; use similarity_search_with_score."
            )
        return lambda score: min(1.0, max(0.0, score))

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        embedding: Embeddings | None = None,
        metadatas: Sequence[dict[str, object]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        path: str | Path | None = None,
        **settings: Unpack[BuildKeywords],
    ) -> SbertSearchVectorStore:
        """Make a store with texts; arguments as for the class and `add_texts`."""
        store = cls(embedding, path, **settings)
        store.add_texts(texts, metadatas, ids=ids)
        return store


def document_of(hit: Hit) -> Document:
    """Return a hit as LangChain's document."""
    metadata = metadata_of(hit.metadata, hit.title)
    return Document(id=hit.doc_id, page_content=hit.text, metadata=metadata)


def documents_of(hits: Hits) -> list[Document]:
    """Return hits as LangChain's documents."""
    return list(map(document_of, hits))


def _holds_index(path: Path) -> bool:
    return any((path / name).exists() for name in ("MANIFEST.json", "shards.json"))
