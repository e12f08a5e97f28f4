"""The engines txtai, LanceDB and Chroma, as `bench_engines` uses them (extra ``bench``).

Their methods are explained at `engines.Engine`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engines import STUB, Row, TextModel, batches_of, rows_of, text_of


class Txtai:
    """txtai's `Embeddings` with stored texts and hybrid search, as its documentation shows."""

    def __init__(self, folder: Path, model: str, *, kill_after: int | None = None) -> None:
        self.folder = folder
        self._settings: dict[str, Any] = {"content": True, "hybrid": True, "path": model}
        if model == STUB:
            stub = TextModel(STUB, kill_after)
            del self._settings["path"]
            self._settings["transform"] = lambda texts: stub.encode(list(texts))

    def create(self, docs: Path) -> None:
        """Index all documents in one call."""
        self._new()
        self._embeddings.index(map(self._document, rows_of(docs)))
        self._embeddings.save(str(self.folder))

    def upsert(self, rows: list[Row]) -> None:
        """Upsert the documents and save the index."""
        if not hasattr(self, "_embeddings"):
            self.open(hybrid=True)
        self._embeddings.upsert(map(self._document, rows))
        self._embeddings.save(str(self.folder))

    def open(self, *, hybrid: bool = False, once: bool = False) -> None:
        """Load the index, with its index of words only if ``hybrid`` is set."""
        self._new(loading=True)
        changed = {k: v for k, v in self._settings.items() if k in ("path", "transform")}
        self._embeddings.load(str(self.folder), config=changed)
        if not hybrid:
            self._embeddings.scoring = None  # with it, every search also ranks by words

    def _new(self, *, loading: bool = False) -> None:
        from txtai import Embeddings

        self._embeddings = Embeddings() if loading else Embeddings(self._settings)

    @staticmethod
    def _document(row: Row) -> Row:
        return {"id": row["_id"], "text": text_of(row), "bucket": row["bucket"]}

    def search(
        self, query: str, k: int, *, hybrid: bool = False, bucket: int | None = None
    ) -> list[tuple[str, str]]:
        """Search; a filter is written as SQL."""
        if bucket is None:
            found = self._embeddings.search(query, k)
        else:
            sql = f"select id, text from txtai where similar(:query) and bucket = {bucket}"
            found = self._embeddings.search(sql, k, parameters={"query": query})
        return [(hit["id"], hit["text"]) for hit in found]

    def refresh(self) -> None:
        """Do nothing, because txtai has no such call."""

    def count(self) -> int:
        """Return the number of vectors or of texts, whichever is smaller."""
        return min(int(self._embeddings.count()), int(self._embeddings.database.count()))


class LanceDb:
    """A LanceDB table of vectors and texts with a full-text index, but without a vector index.

    LanceDB's documentation says that a table of this size needs no vector index: a search scans all
    vectors.
    """

    def __init__(self, folder: Path, model: str, *, kill_after: int | None = None) -> None:
        self.folder, self._model = folder, TextModel(model, kill_after)

    def _rows(self, rows: Iterable[Row]) -> list[Row]:
        rows = list(rows)
        vectors = self._model.encode([text_of(row) for row in rows])
        return [
            {"id": r["_id"], "text": text_of(r), "bucket": r["bucket"], "vector": vector}
            for r, vector in zip(rows, vectors, strict=True)
        ]

    def create(self, docs: Path) -> None:
        """Write the table in batches and index the words."""
        import lancedb
        from lancedb.index import FTS

        database = lancedb.connect(self.folder)
        first, *others = batches_of(docs)
        self._table = database.create_table("docs", self._rows(first))
        for rows in others:
            self._table.add(self._rows(rows))
        self._table.create_index("text", config=FTS())

    def upsert(self, rows: list[Row]) -> None:
        """Merge the documents into the table."""
        if not hasattr(self, "_table"):
            self.open()
        merge = self._table.merge_insert("id").when_matched_update_all()
        merge.when_not_matched_insert_all().execute(self._rows(rows))

    def open(self, *, hybrid: bool = False, once: bool = False) -> None:
        """Open the table."""
        import lancedb

        self._table = lancedb.connect(self.folder).open_table("docs")

    def search(
        self, query: str, k: int, *, hybrid: bool = False, bucket: int | None = None
    ) -> list[tuple[str, str]]:
        """Search by vectors, or by vectors and words."""
        vector = self._model.encode([query])[0]
        if hybrid:
            found = self._table.search(query_type="hybrid").vector(vector).text(query)
        else:
            found = self._table.search(vector)
        if bucket is not None:
            found = found.where(f"bucket = {bucket}")
        return [(hit["id"], hit["text"]) for hit in found.limit(k).to_list()]

    def refresh(self) -> None:
        """Load the newest version of the table."""
        self._table.checkout_latest()

    def count(self) -> int:
        """Count the documents."""
        return int(self._table.count_rows())


class Chroma:
    """A Chroma collection on disk with its sentence-transformers embedding function.

    With the model `STUB`, which makes random vectors, the collection has no embedding function and
    gets the vectors together with the documents.
    """

    def __init__(self, folder: Path, model: str, *, kill_after: int | None = None) -> None:
        self.folder, self._stub, self._embed = folder, None, None
        if model == STUB:
            self._stub = TextModel(STUB, kill_after)
            return
        from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction

        self._embed = SentenceTransformerEmbeddingFunction(model_name=model)

    def _client(self) -> Any:
        import chromadb
        from chromadb.config import Settings

        quiet = Settings(anonymized_telemetry=False)
        return chromadb.PersistentClient(str(self.folder), settings=quiet)

    def create(self, docs: Path) -> None:
        """Create the collection and add the documents in batches."""
        self._collection = self._client().create_collection("docs", embedding_function=self._embed)
        for rows in batches_of(docs):
            self.upsert(rows)

    def upsert(self, rows: list[Row]) -> None:
        """Upsert the documents."""
        if not hasattr(self, "_collection"):
            self.open()
        texts = [text_of(row) for row in rows]
        self._collection.upsert(
            ids=[row["_id"] for row in rows],
            documents=texts,
            embeddings=self._stub.encode(texts) if self._stub else None,
            metadatas=[{"bucket": row["bucket"]} for row in rows],
        )

    def open(self, *, hybrid: bool = False, once: bool = False) -> None:
        """Open the collection."""
        self._collection = self._client().get_collection("docs", embedding_function=self._embed)

    def search(
        self, query: str, k: int, *, hybrid: bool = False, bucket: int | None = None
    ) -> list[tuple[str, str]]:
        """Search by vectors."""
        where = None if bucket is None else {"bucket": bucket}
        found = self._collection.query(query_texts=[query], n_results=k, where=where)
        return list(zip(found["ids"][0], found["documents"][0], strict=True))

    def refresh(self) -> None:
        """Do nothing, because Chroma has no such call."""

    def count(self) -> int:
        """Count the documents."""
        return int(self._collection.count())
