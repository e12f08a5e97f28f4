"""An embedder that is opened at its first use, so that work without new texts loads no model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sbert_search.embedding.protocol import Task, TextEmbedder, TokenizedTexts, Vectors
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.tokens.chunking import WHOLE_WORDS, Chunking


class LazyEmbedder:
    """Opens an embedder when a method or property is first used; every use may raise its errors.

    Args:
        open_model: Opens and checks the embedder; it is called once, by any thread.
    """

    def __init__(self, open_model: Callable[[], TextEmbedder]) -> None:
        self._open = open_model
        self._opened: TextEmbedder | None = None
        self._guard = threading.Lock()

    @property
    def opened(self) -> TextEmbedder:
        """The embedder, which this opens."""
        with self._guard:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    @property
    def is_open(self) -> bool:
        """Whether the embedder has been opened."""
        return self._opened is not None

    @property
    def dim(self) -> int:
        """As of the embedder, like everything below."""
        return self.opened.dim

    @property
    def max_len(self) -> int:
        """Maximum tokens of a text."""
        return self.opened.max_len

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model."""
        return self.opened.identity

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of one batch."""
        return self.opened.batch_tokens

    def tokenize(
        self, texts: Sequence[str], *, task: Task | None = None, prompt_name: str | None = None
    ) -> TokenizedTexts:
        """Turn texts into token ids."""
        return self.opened.tokenize(texts, task=task, prompt_name=prompt_name)

    def split(
        self, text: str, *, task: Task | None = None, chunking: Chunking = WHOLE_WORDS
    ) -> list[tuple[int, int]]:
        """Cut a text into passages."""
        return self.opened.split(text, task=task, chunking=chunking)

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors, float32 (n, dim)."""
        return self.opened.encode_tokens(tokens)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of texts that are neither queries nor documents."""
        return self.opened.encode(texts)

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of queries."""
        return self.opened.encode_query(texts)

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of documents."""
        return self.opened.encode_document(texts)
