"""Passages without a model: vectors drawn from a seed, documents with one or more passages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.pipeline import EmbeddedBatch
from sbert_search.records import Document


def make_batch(
    documents: Sequence[Document], vectors: NDArray[np.float32], chunks: Sequence[int] | None = None
) -> EmbeddedBatch[None]:
    """Give each document its number of passages (default 1) and each passage the next vector."""
    counts = np.array([1] * len(documents) if chunks is None else chunks)
    doc_of = np.repeat(np.arange(len(documents)), counts)
    chunk = np.concatenate([np.arange(count) for count in counts]) if len(counts) else counts
    start = chunk.astype(np.int64) * 10
    return EmbeddedBatch(
        documents=documents,
        doc_of=doc_of,
        chunk=chunk.astype(np.int32),
        char_start=start,
        char_end=start + 10,
        n_tokens=np.full(len(doc_of), 3, np.int32),
        lost_tokens=np.zeros(len(doc_of), np.int32),
        vectors=vectors,
        stored_row=np.full(len(doc_of), -1),
        payload=None,
        held_bytes=0,
    )


def some_documents(n_docs: int, prefix: str = "d") -> list[Document]:
    """Make documents with an id, a text and a year."""
    return [
        Document(f"{prefix}{i}", f"text of {i}", metadata={"year": 2000 + i % 20}, source=f"f:{i}")
        for i in range(n_docs)
    ]


def some_vectors(n_rows: int, dim: int = 8, seed: int = 0) -> NDArray[np.float32]:
    """Draw vectors, (n_rows, dim)."""
    return np.random.default_rng(seed).normal(size=(n_rows, dim)).astype(np.float32)
