"""The interface of an embedder that indexing and search use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.text.tokens.chunking import WHOLE_WORDS, Chunking

Task = Literal["query", "document"]
Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Texts as token ids, truncated to the model's limit."""

    texts: Sequence[str]  # in input order, without prompts
    prompt: str  # before each text
    ids: Sequence[Sequence[int]]  # of prompt and text, special tokens included
    lost: NDArray[np.int32]  # number of tokens of each text that were cut off, (n,)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each text after truncation, int32 (n,)."""
        return np.fromiter(map(len, self.ids), dtype=np.int32, count=len(self.ids))

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> TokenizedTexts:
        """Return the texts at the indices ``rows``, in that order."""
        selected = [int(row) for row in rows]
        return TokenizedTexts(
            [self.texts[row] for row in selected],
            self.prompt,
            [self.ids[row] for row in selected],
            self.lost[selected],
        )


class TextEmbedder(Protocol):
    """Interface of objects that turn texts into vectors, such as `Embedder`.

    Example:
        >>> embedder: TextEmbedder = Embedder("my-model", device="cpu")
        >>> embedder.encode_query("a cat").shape
        (16,)
    """

    @property
    def dim(self) -> int:
        """Number of dimensions of a vector."""

    @property
    def max_len(self) -> int:
        """Maximum tokens of a text, special tokens included; longer texts are truncated."""

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model: name, hashes and settings."""

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of one batch."""

    def tokenize(
        self,
        texts: Sequence[str],
        *,
        task: Task | None = None,
        prompt_name: str | None = None,
    ) -> TokenizedTexts:
        """Put a prompt before each text and turn the result into at most ``max_len`` token ids."""

    def split(
        self, text: str, *, task: Task | None = None, chunking: Chunking = WHOLE_WORDS
    ) -> list[tuple[int, int]]:
        """Cut a text into passages that need no truncation.

        Returns:
            Start and end of each passage in characters, in order; there is no gap between
            consecutive passages.
        """

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        """Compute vectors, float32 (n, dim), rows in input order."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of texts that are neither queries nor documents, float32 (n, dim)."""

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of queries, float32 (n, dim)."""

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Compute vectors of documents, float32 (n, dim)."""
