"""An embedder that is opened at its first use, so that work without new texts loads no model."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sbert_search.embedding.delegation import DelegatingEmbedder
from sbert_search.embedding.protocol import TextEmbedder, TokenizedTexts, Vectors


class LazyEmbedder(DelegatingEmbedder):
    """Opens an embedder when a method or property that needs it is first used.

    That first use raises the errors of opening.

    Args:
        open_model: Opens and checks the embedder. It is called in the thread of the first use. If
            it raises an error, the next use calls it again.
    """

    def __init__(self, open_model: Callable[[], TextEmbedder]) -> None:
        self._open = open_model
        self._opened: TextEmbedder | None = None
        self._guard = threading.Lock()

    @property
    def opened(self) -> TextEmbedder:
        """The embedder; this property opens it if it is not open."""
        with self._guard:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    @property
    def is_open(self) -> bool:
        """Whether the embedder has been opened."""
        return self._opened is not None

    @property
    def inner(self) -> TextEmbedder:
        """The same embedder as `opened`; this property also opens it."""
        return self.opened

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors, float32 (n, dim)."""
        return self.opened.encode_tokens(tokens)
