"""The interface of the search engines that `bench_engines` compares, and two of the engines.

Each engine is used as its documentation shows. Every engine embeds title and text joined by a
space. It stores the text and a number, ``bucket``, to filter by. An engine that can search by words
also indexes the words.

The model of an engine is a folder. In trials that need no model it is `STUB`: `SbertSearch` then
hashes words to vectors, and the other engines get random vectors. Libraries are imported where they
are used, so that a process loads only the libraries of one engine.
"""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

STUB = "stub"
DIM = 384
TEXTS_A_SECOND = 1000  # pace of embedding in a process that will be killed
BATCH = 1024  # documents of one call, for engines whose user chooses the number
Row = dict[str, Any]  # a document: _id, title, text and bucket
Vectors = NDArray[np.float32]


class Engine(Protocol):
    """A search engine; the constructor takes the index folder and the model."""

    def create(self, docs: Path) -> None:
        """Index a JSONL file of documents; they are on disk on return."""

    def upsert(self, rows: list[Row]) -> None:
        """Add documents or replace those with the same id; they are on disk on return."""

    def open(self, *, hybrid: bool = False, once: bool = False) -> None:
        """Open the index for searching; ``once``: this process will ask only one query."""

    def search(
        self, query: str, k: int, *, hybrid: bool = False, bucket: int | None = None
    ) -> list[tuple[str, str]]:
        """Return ids and texts of the best documents, best first."""

    def refresh(self) -> None:
        """Load what other processes wrote, if the engine has a call for this."""

    def count(self) -> int:
        """Count the documents of an opened index."""


class TextModel:
    """A SentenceTransformer, or for `STUB` random vectors that depend on the text alone.

    Attributes:
        kill_after: Number of embedded texts after which the process kills itself. None: never. If
            a number is set, embedding is slowed down to `TEXTS_A_SECOND`.
    """

    def __init__(self, model: str, kill_after: int | None = None) -> None:
        self.kill_after, self._n_texts, self._model = kill_after, 0, None
        if model != STUB:
            from sentence_transformers import SentenceTransformer

            self._model = SentenceTransformer(model, device="cpu")

    def encode(self, texts: list[str]) -> Vectors:
        """Embed texts, (n_texts, dim), each of norm 1."""
        self.count_and_kill(len(texts))
        if self._model is not None:
            vectors: Vectors = self._model.encode(texts, normalize_embeddings=True)
            return vectors
        seeds = (zlib.crc32(text.encode()) for text in texts)
        drawn = np.stack([np.random.default_rng(seed).normal(size=DIM) for seed in seeds])
        unit: Vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
        return unit

    def count_and_kill(self, n_texts: int) -> None:
        """Count embedded texts; kill the process when there are more than ``kill_after``."""
        if self.kill_after is None:
            return
        time.sleep(n_texts / TEXTS_A_SECOND)
        self._n_texts += n_texts
        if self._n_texts > self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)


class SbertSearch:
    """This package, used by its `Index` and `SearchEngine`; for the methods see `Engine`."""

    def __init__(self, folder: Path, model: str, *, kill_after: int | None = None) -> None:
        self.folder, self._kill_after = folder, kill_after
        self._model: Any = "hashing" if model == STUB else model

    def create(self, docs: Path) -> None:
        """Build the index from the file."""
        from sbert_search import Index

        dies = self._kill_after is not None
        model = _hashing_that_dies(self._kill_after) if dies else self._model
        Index.build(docs, out=self.folder, model=model, on_truncate="warn")

    def upsert(self, rows: list[Row]) -> None:
        """Write the documents to a file and upsert the file."""
        from sbert_search import Index

        file = self.folder.with_suffix(".new.jsonl")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        Index.open(self.folder).upsert(file, model=self._model)

    def open(self, *, hybrid: bool = False, once: bool = False) -> None:
        """Open a `SearchEngine`; with ``once``, in the mode for a single query."""
        from sbert_search import SearchEngine

        self._engine = SearchEngine(self.folder, self._model, quick=once)

    def search(
        self, query: str, k: int, *, hybrid: bool = False, bucket: int | None = None
    ) -> list[tuple[str, str]]:
        """Search by vectors, or by vectors and words."""
        where = None if bucket is None else f"bucket = {bucket}"
        mode: Literal["hybrid", "dense"] = "hybrid" if hybrid else "dense"
        hits = self._engine.search(query, k, mode=mode, where=where, syntax="plain")
        return [(hit.doc_id, hit.text) for hit in hits]

    def refresh(self) -> None:
        """Load the newest state of the index."""
        self._engine.refresh()

    def count(self) -> int:
        """Count the documents."""
        return len(self._engine.index)


def _hashing_that_dies(kill_after: int | None) -> Any:
    from sbert_search.embed.hashing import HashingEmbedder

    killer = TextModel(STUB, kill_after)

    class Dying(HashingEmbedder):
        def encode_tokens(self, tokens: Any) -> Any:
            killer.count_and_kill(len(tokens))
            return super().encode_tokens(tokens)

    return Dying()


class FaissScript:
    """A flat FAISS file and the documents as JSON lines, as a script of some twenty lines has them.

    For the methods see `Engine`.
    """

    def __init__(self, folder: Path, model: str, *, kill_after: int | None = None) -> None:
        self._vectors_file, self._docs_file = folder / "flat.faiss", folder / "docs.jsonl"
        self._model = TextModel(model, kill_after)

    def create(self, docs: Path) -> None:
        """Embed all documents and write both files."""
        import faiss

        self._docs = list(rows_of(docs))
        self._index: Any = faiss.IndexFlatIP(DIM)
        self._index.add(self._model.encode([text_of(row) for row in self._docs]))
        self._save()

    def upsert(self, rows: list[Row]) -> None:
        """Append the documents: old versions stay, because FAISS does not know document ids."""
        if not hasattr(self, "_index"):
            self.open()
        self._docs += rows
        self._index.add(self._model.encode([text_of(row) for row in rows]))
        self._save()

    def _save(self) -> None:
        import faiss

        self._vectors_file.parent.mkdir(exist_ok=True)
        faiss.write_index(self._index, str(self._vectors_file))
        self._docs_file.write_text("".join(json.dumps(row) + "\n" for row in self._docs))

    def open(self, *, hybrid: bool = False, once: bool = False) -> None:
        """Read both files."""
        import faiss

        self._index = faiss.read_index(str(self._vectors_file))
        self._docs = list(rows_of(self._docs_file))
        if self._index.ntotal != len(self._docs):
            raise ValueError(f"{self._index.ntotal} vectors, {len(self._docs)} documents")

    def search(
        self, query: str, k: int, *, hybrid: bool = False, bucket: int | None = None
    ) -> list[tuple[str, str]]:
        """Search by vectors; a filter is passed to FAISS as a list of positions."""
        import faiss

        parameters, swig = None, cast(Any, faiss)  # its type stubs lack the two classes below
        if bucket is not None:
            allowed = [row for row, doc in enumerate(self._docs) if doc["bucket"] == bucket]
            parameters = swig.SearchParameters(sel=swig.IDSelectorBatch(allowed))
        _, rows = self._index.search(self._model.encode([query]), k, params=parameters)
        found = (self._docs[row] for row in rows[0] if row >= 0)
        return [(doc["_id"], text_of(doc)) for doc in found]

    def refresh(self) -> None:
        """Do nothing, because the script has no such call."""

    def count(self) -> int:
        """Count the documents."""
        return len(self._docs)


def rows_of(docs: Path) -> Iterator[Row]:
    """Read the documents of a JSONL file."""
    with docs.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def text_of(row: Row) -> str:
    """Return the text that engines embed and index: title and text joined by a space."""
    return f"{row['title']} {row['text']}" if row["title"] else str(row["text"])


def batches_of(docs: Path) -> Iterator[list[Row]]:
    """Read the documents of a JSONL file in batches."""
    rows = rows_of(docs)
    while batch := list(islice(rows, BATCH)):
        yield batch
