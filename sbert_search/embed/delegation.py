"""Embedders that wrap another embedder: a base class, and one that opens it at its first use."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from sbert_search.embed.protocol import Task, TextEmbedder, TokenizedTexts, Vectors
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.text.tokens.chunking import WHOLE_WORDS, Chunking


class DelegatingEmbedder(ABC):
    """Wraps another embedder: a subclass computes the vectors, the wrapped embedder does all else.

    All methods that encode texts call `encode_tokens` of the subclass.
    """

    @property
    @abstractmethod
    def inner(self) -> TextEmbedder:
        """The wrapped embedder."""

    @abstractmethod
    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors of at least one text, float32 (n, dim), rows in input order."""

    @property
    def dim(self) -> int:
        """Number of dimensions of a vector."""
        return self.inner.dim

    @property
    def max_len(self) -> int:
        """Maximum tokens of a text."""
        return self.inner.max_len

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model."""
        return self.inner.identity

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of one batch."""
        return self.inner.batch_tokens

    def tokenize(
        self, texts: Sequence[str], *, task: Task | None = None, prompt_name: str | None = None
    ) -> TokenizedTexts:
        """Turn texts into token ids."""
        return self.inner.tokenize(texts, task=task, prompt_name=prompt_name)

    def split(
        self, text: str, *, task: Task | None = None, chunking: Chunking = WHOLE_WORDS
    ) -> list[tuple[int, int]]:
        """Cut a text into passages."""
        return self.inner.split(text, task=task, chunking=chunking)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of texts that are neither queries nor documents, float32 (n, dim)."""
        return self._encode(texts, None)

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of queries, float32 (n, dim)."""
        return self._encode(texts, "query")

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of documents, float32 (n, dim)."""
        return self._encode(texts, "document")

    def _encode(self, texts: Sequence[str], task: Task | None) -> Vectors:
        if not texts:
            return np.empty((0, self.dim), np.float32)
        return self.encode_tokens(self.tokenize(texts, task=task))


class LazyEmbedder(DelegatingEmbedder):
    """Opens an embedder when a method or property that needs it is first used, in that thread.

    That first use raises the errors of opening; the next use then opens it again.
    """

    def __init__(self, open_model: Callable[[], TextEmbedder]) -> None:
        self._open = open_model
        self._opened: TextEmbedder | None = None
        self._guard = threading.Lock()

    @property
    def inner(self) -> TextEmbedder:
        """The embedder; this property opens it if it is not open."""
        with self._guard:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    @property
    def is_open(self) -> bool:
        """Whether the embedder has been opened."""
        return self._opened is not None

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors, float32 (n, dim)."""
        return self.inner.encode_tokens(tokens)
