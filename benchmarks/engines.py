"""What a search engine must do to be measured, and the two that need no further package.

Each engine is used as its documentation shows. The model is a folder, or `STUB` where a trial is
not about vectors. Every engine embeds title and text joined by a space, keeps the text and a
number, ``bucket``, to filter by, and indexes words where it can search by words too. Engines are
imported when they are used, so that a cold start loads one of them only.
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
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

STUB = "stub"
DIM = 384
TEXTS_A_SECOND = 1000  # of a process that is to be killed
BATCH = 1024  # documents given to an engine at once, where its user chooses
Row = dict[str, Any]
Vectors = NDArray[np.float32]


class Engine(Protocol):
    """What every engine can do; the constructor takes the index folder and the model."""

    def create(self, docs: Path) -> None:
        """Index a JSONL file of documents; they are on disk on return."""

    def upsert(self, rows: list[Row]) -> None:
        """Add documents or replace those with the same id; they are on disk on return."""

    def open(self, *, hybrid: bool = False, once: bool = False) -> None:
        """Open the index for searching, or for one query of a process (``once``)."""

    def search(
        self, query: str, k: int, *, hybrid: bool = False, bucket: int | None = None
    ) -> list[tuple[str, str]]:
        """Find ids and texts of the best documents, best first."""

    def refresh(self) -> None:
        """See what other processes wrote, by the call that the engine has for it."""

    def count(self) -> int:
        """Count the documents of an opened index."""


class TextModel:
    """A SentenceTransformer, or for `STUB` random vectors that depend on the text alone.

    Attributes:
        kill_after: The process kills itself once it has embedded so many texts, at a pace that a
            GPU may have; None: never.
    """

    def __init__(self, model: str, kill_after: int | None = None) -> None:
        self.kill_after, self._n_texts, self._model = kill_after, 0, None
        if model != STUB:
            from sentence_transformers import SentenceTransformer

            self._model = SentenceTransformer(model, device="cpu")

    def encode(self, texts: list[str]) -> Vectors:
        """Embed texts, (n_texts, dim), each of norm 1."""
        self.require_life(len(texts))
        if self._model is not None:
            vectors: Vectors = self._model.encode(texts, normalize_embeddings=True)
            return vectors
        seeds = (zlib.crc32(text.encode()) for text in texts)
        drawn = np.stack([np.random.default_rng(seed).normal(size=DIM) for seed in seeds])
        unit: Vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
        return unit

    def require_life(self, n_texts: int) -> None:
        """Count texts, and end the process when they are enough."""
        if self.kill_after is None:
            return
        time.sleep(n_texts / TEXTS_A_SECOND)
        self._n_texts += n_texts
        if self._n_texts > self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)


class SbertSearch:
    """This package: `Index` and `SearchEngine`."""

    def __init__(self, folder: Path, model: str, *, kill_after: int | None = None) -> None:
        self.folder, self._kill_after = folder, kill_after
        self._model: Any = "hashing" if model == STUB else model

    def create(self, docs: Path) -> None:
        from sbert_search import Index

        dies = self._kill_after is not None
        model = _hashing_that_dies(self._kill_after) if dies else self._model
        Index.build(docs, out=self.folder, model=model)

    def upsert(self, rows: list[Row]) -> None:
        from sbert_search import Index

        file = self.folder.with_suffix(".new.jsonl")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        Index.open(self.folder).upsert(file, model=self._model)

    def open(self, *, hybrid: bool = False, once: bool = False) -> None:
        from sbert_search import SearchEngine

        self._engine = SearchEngine(self.folder, self._model, quick=once)

    def search(
        self, query: str, k: int, *, hybrid: bool = False, bucket: int | None = None
    ) -> list[tuple[str, str]]:
        where = None if bucket is None else f"bucket = {bucket}"
        hits = self._engine.search(query, k, mode="hybrid" if hybrid else "dense", where=where)
        return [(hit.doc_id, hit.text) for hit in hits]

    def refresh(self) -> None:
        self._engine.refresh()

    def count(self) -> int:
        return len(self._engine.index)


def _hashing_that_dies(kill_after: int | None) -> Any:
    from sbert_search.embedding.hashing import HashingEmbedder

    life = TextModel(STUB, kill_after)

    class Dying(HashingEmbedder):
        def encode_tokens(self, tokens: Any) -> Any:
            life.require_life(len(tokens))
            return super().encode_tokens(tokens)

    return Dying()


class FaissScript:
    """What a script of some twenty lines does: a flat FAISS file and the rows as JSON lines."""

    def __init__(self, folder: Path, model: str, *, kill_after: int | None = None) -> None:
        self._vectors, self._rows = folder / "flat.faiss", folder / "docs.jsonl"
        self._model = TextModel(model, kill_after)

    def create(self, docs: Path) -> None:
        import faiss

        self._docs = list(rows_of(docs))
        self._index: Any = faiss.IndexFlatIP(DIM)
        self._index.add(self._model.encode([text_of(row) for row in self._docs]))
        self._save()

    def upsert(self, rows: list[Row]) -> None:
        """Append: the FAISS index has no ids of documents by which to find the old rows."""
        if not hasattr(self, "_index"):
            self.open()
        self._docs += rows
        self._index.add(self._model.encode([text_of(row) for row in rows]))
        self._save()

    def _save(self) -> None:
        import faiss

        self._vectors.parent.mkdir(exist_ok=True)
        faiss.write_index(self._index, str(self._vectors))
        self._rows.write_text("".join(json.dumps(row) + "\n" for row in self._docs))

    def open(self, *, hybrid: bool = False, once: bool = False) -> None:
        import faiss

        self._index = faiss.read_index(str(self._vectors))
        self._docs = list(rows_of(self._rows))
        if self._index.ntotal != len(self._docs):
            raise ValueError(f"{self._index.ntotal} vectors, {len(self._docs)} documents")

    def search(
        self, query: str, k: int, *, hybrid: bool = False, bucket: int | None = None
    ) -> list[tuple[str, str]]:
        import faiss

        parameters, swig = None, cast(Any, faiss)  # the types know neither of the two below
        if bucket is not None:
            allowed = [row for row, doc in enumerate(self._docs) if doc["bucket"] == bucket]
            parameters = swig.SearchParameters(sel=swig.IDSelectorBatch(allowed))
        _, rows = self._index.search(self._model.encode([query]), k, params=parameters)
        found = (self._docs[row] for row in rows[0] if row >= 0)
        return [(doc["_id"], text_of(doc)) for doc in found]

    def refresh(self) -> None:
        """The script has no such call."""

    def count(self) -> int:
        return len(self._docs)


def rows_of(docs: Path) -> Iterator[Row]:
    """Read a JSONL file."""
    with docs.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def text_of(row: Row) -> str:
    """What is embedded and searched by words."""
    return f"{row['title']} {row['text']}" if row["title"] else str(row["text"])


def batches_of(docs: Path) -> Iterator[list[Row]]:
    """Read a JSONL file in batches."""
    rows = rows_of(docs)
    while batch := list(islice(rows, BATCH)):
        yield batch
