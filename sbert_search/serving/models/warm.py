"""An embedder that computes with a model's exported graph until torch has loaded the model."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

from sbert_search.base.progress import warn
from sbert_search.embed.delegation import DelegatingEmbedder
from sbert_search.embed.protocol import TextEmbedder, TokenizedTexts, Vectors
from sbert_search.errors import SbertSearchError

# A batch with more tokens makes torch load. With the graph, a batch of several texts has at most
# 256 tokens. With a larger number here, only a single long text could make torch load.
_LARGE_TOKENS = 128


class WarmEmbedder(DelegatingEmbedder):
    """Computes with one embedder until a large batch comes and another embedder is open.

    The exported graph opens in a fraction of a second and embeds a lone query quickly; torch opens
    in seconds and embeds many texts faster. Torch is therefore loaded in the background, after the
    first batch that it would embed faster. If loading fails, the graph stays in use.

    Args:
        quick: The embedder with the exported graph.
        open_full: Opens the embedder with torch; it is called in another thread.
    """

    def __init__(self, quick: TextEmbedder, open_full: Callable[[], TextEmbedder]) -> None:
        self._current, self._open_full = quick, open_full
        self._opening: threading.Thread | None = None

    @property
    def inner(self) -> TextEmbedder:
        """The embedder that computes now."""
        return self._current

    @property
    def tokenizer(self) -> object:
        """The tokenizer of the model."""
        return getattr(self._current, "tokenizer", None)

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors; a large batch starts to open the other embedder."""
        if self._opening is None and int(tokens.lengths.sum()) > _LARGE_TOKENS:
            self._opening = threading.Thread(target=self._open, name="open model", daemon=True)
            self._opening.start()
        return self._current.encode_tokens(tokens)

    def _open(self) -> None:
        try:
            self._current = self._open_full()
            gc.freeze()  # as at the start of the server: torch has a million objects
        except SbertSearchError as error:
            warn(f"The exported graph goes on computing, since torch cannot: {error}")
