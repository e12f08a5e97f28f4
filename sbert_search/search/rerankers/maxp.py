"""Reranking long texts by windows: the score of a text is that of its best window.

Source: Dai & Callan 2019, Deeper Text Understanding for IR with Contextual Neural Language
Modeling, section 3, MaxP (arXiv:1905.09217).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import Vectors
from sbert_search.errors import ConfigError
from sbert_search.models.loading.identity import ModelIdentity
from sbert_search.search.rerankers.reranker import Pair

if TYPE_CHECKING:
    from sbert_search.text.tokens.tokenizer import TextTokenizer

# If the query leaves room for fewer tokens than this in a window, the text is not split into
# windows, but truncated.
_LEAST_ROOM = 16


class PairModel(Protocol):
    """A model that scores pairs with its own tokenizer, such as a `Reranker`."""

    @property
    def num_labels(self) -> int:
        """Number of scores of a pair."""

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model."""

    @property
    def tokenizer(self) -> TextTokenizer:
        """Tokenizer that truncates pairs."""

    def predict(self, pairs: list[Pair], /) -> Vectors:
        """Score pairs of query and text, float32 (n,)."""

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn scores of `predict` (n,) into probabilities."""


def require_one_label(reranker: PairModel) -> None:
    """Refuse a reranker that gives several scores for a pair.

    Raises:
        ConfigError: The reranker has several labels.
    """
    if reranker.num_labels != 1:
        raise ConfigError(
            f"{reranker.identity.name} has {reranker.num_labels} labels, so no single score to "
            "rank by; name a cross-encoder with one label."
        )


class BestWindow:
    """A reranker that reads long texts in windows instead of cutting them.

    Args:
        reranker: Scores each window; it must give one score for a pair.
        most: Maximum number of windows of a text that are scored. If a text has more windows,
            evenly spaced windows are scored, including the first and the last. If this is 1, long
            texts are truncated, as by `Reranker`.

    Raises:
        ConfigError: ``most`` is below 1, or the reranker has several labels.
    """

    def __init__(self, reranker: PairModel, most: int = 4) -> None:
        if most < 1:
            raise ConfigError(f"There must be at least 1 window, not {most}.")
        require_one_label(reranker)
        self.reranker, self.most = reranker, most
        from sbert_search.text.tokens.tokenizer import TextTokenizer  # only reranking needs this

        tokenizer = reranker.tokenizer
        extra = tokenizer.pair.size - tokenizer.single.size  # special tokens that only a pair has
        self._room = tokenizer.max_len - extra
        self._tokenizer = TextTokenizer(tokenizer.backend, self._room, folder=tokenizer.folder)
        self._pair_tokenizer = tokenizer

    @property
    def identity(self) -> ModelIdentity:
        """The identity of the reranker's model."""
        return self.reranker.identity

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn scores of `predict` (n,) into probabilities; see `Reranker.probabilities`."""
        return self.reranker.probabilities(scores)

    def predict(self, pairs: Sequence[Pair]) -> Vectors:
        """Score pairs of query and text, float32 (n,)."""
        pairs = list(pairs)
        if self.most == 1 or not pairs:
            return self.reranker.predict(pairs)
        lost = self._pair_tokenizer.encode_pairs(pairs).lost
        windows = [
            self._windows(*pair) if cut else [pair[1]]
            for pair, cut in zip(pairs, lost, strict=True)
        ]
        flat = [
            (pair[0], text) for pair, texts in zip(pairs, windows, strict=True) for text in texts
        ]
        starts = np.cumsum([0, *map(len, windows[:-1])])
        best: Vectors = np.maximum.reduceat(self.reranker.predict(flat), starts)
        return best

    def _windows(self, query: str, text: str) -> list[str]:
        """Cut a text into at most ``most`` windows that fit into the model together with the query.

        If the query leaves too little room, the whole text is returned.
        """
        used = len(self._tokenizer.encode([query])[0][0])
        if used + _LEAST_ROOM > self._room:
            return [text]
        spans = self._tokenizer.split(text, prompt=f"{query} ")
        if len(spans) > self.most:
            kept = np.linspace(0, len(spans) - 1, self.most).round().astype(int)
            spans = [spans[i] for i in kept]
        return [text[start:end] for start, end in spans]
