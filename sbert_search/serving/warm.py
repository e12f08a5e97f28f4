"""An embedder that answers by a model's exported graph until torch has loaded the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sbert_search.embedding.protocol import Task, TextEmbedder, TokenizedTexts, Vectors
from sbert_search.errors import SbertSearchError
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.runtime.progress import warn
from sbert_search.tokens.chunking import WHOLE_WORDS, Chunking

_LARGE_TOKENS = 128  # a larger batch makes torch load; the graph takes batches of up to 256


class WarmEmbedder:
    """Computes with one embedder, and after the first large batch with another, once it is open.

    The exported graph opens in a fraction of a second and embeds a lone query quickly; torch opens
    in seconds and embeds many texts faster. Torch is therefore loaded beside the requests, after
    the first batch that it would embed faster. If loading fails, the graph goes on.

    Args:
        quick: The embedder until then.
        open_full: Opens the other embedder, in a thread of its own.
    """

    def __init__(self, quick: TextEmbedder, open_full: Callable[[], TextEmbedder]) -> None:
        self._current, self._open_full = quick, open_full
        self._opening: threading.Thread | None = None

    @property
    def current(self) -> TextEmbedder:
        """The embedder that computes now."""
        return self._current

    @property
    def dim(self) -> int:
        """As of the embedder, like everything below."""
        return self._current.dim

    @property
    def max_len(self) -> int:
        """Maximum tokens of a text."""
        return self._current.max_len

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model."""
        return self._current.identity

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of one batch."""
        return self._current.batch_tokens

    @property
    def tokenizer(self) -> object:
        """The tokenizer of the model."""
        return getattr(self._current, "tokenizer", None)

    def tokenize(
        self, texts: Sequence[str], *, task: Task | None = None, prompt_name: str | None = None
    ) -> TokenizedTexts:
        """Turn texts into token ids."""
        return self._current.tokenize(texts, task=task, prompt_name=prompt_name)

    def split(
        self, text: str, *, task: Task | None = None, chunking: Chunking = WHOLE_WORDS
    ) -> list[tuple[int, int]]:
        """Cut a text into passages."""
        return self._current.split(text, task=task, chunking=chunking)

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors; a large batch starts to open the other embedder."""
        if self._opening is None and int(tokens.lengths.sum()) > _LARGE_TOKENS:
            self._opening = threading.Thread(target=self._open, name="open model", daemon=True)
            self._opening.start()
        return self._current.encode_tokens(tokens)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of texts that are neither queries nor documents."""
        return self.encode_tokens(self.tokenize(texts))

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of queries."""
        return self.encode_tokens(self.tokenize(texts, task="query"))

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of documents."""
        return self.encode_tokens(self.tokenize(texts, task="document"))

    def _open(self) -> None:
        try:
            self._current = self._open_full()
        except SbertSearchError as error:
            warn(f"The exported graph goes on computing, since torch cannot: {error}")
