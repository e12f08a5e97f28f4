"""Tokenise sentences of tagged words, and compute their emissions (logits) and metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sbert_search.base.progress import warn
from sbert_search.evaluate.metrics.heads import entity_scores
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.token_classifier import TokenClassifier
from sbert_search.records import TaggedTokens
from sbert_search.tag_schemes import OUTSIDE
from sbert_search.text.tokens.batching import TOKENS_AT_ONCE, token_batches
from sbert_search.text.tokens.windows import TRUNCATED, encode_words, join_words
from sbert_search.train.data.token_table import TokenTable
from sbert_search.train.loop.batching import Rows


@dataclass(frozen=True, eq=False, slots=True)
class WordRows:
    """Tokenised sentences, with the words that have a token.

    Attributes:
        table: Token ids of the sentences.
        first: For each sentence, the index in the sentence's tokens of the first token of each word
            that has a token, int64.
        words: For each sentence, the indices of these words among all its words, int64.
    """

    table: TokenTable
    first: list[NDArray[np.int64]]
    words: list[NDArray[np.int64]]

    @classmethod
    def of(cls, model: TokenClassifier, rows: Sequence[TaggedTokens]) -> WordRows:
        """Tokenise sentences; a warning says how many words have no token."""
        joined = [join_words(row.tokens) for row in rows]
        texts, spans = [text for text, _ in joined], [span for _, span in joined]
        encoded = encode_words(model.tokenizer, texts, spans)
        places = [np.array(first, dtype=np.int64) for first in encoded.first]
        words = [np.flatnonzero(place != TRUNCATED) for place in places]
        if lost := sum(map(len, places)) - sum(map(len, words)):
            warn(
                f"{lost:,} words have no token: they are behind the first "
                f"{model.tokenizer.max_len} tokens of their text, or the tokenizer drops them."
            )
        ids = [np.array(each, dtype=np.int32) for each in encoded.ids]
        first = [place[word] for place, word in zip(places, words, strict=True)]
        return cls(TokenTable.join(ids), first, words)

    def take(self, rows: Rows) -> WordInputs:
        """Make the input of the model for some sentences."""
        tokens = self.table.pack(rows)
        starts = np.cumsum([0, *tokens.lengths])
        places = [
            self.first[row] + start for row, start in zip(rows.tolist(), starts, strict=False)
        ]
        return WordInputs(tokens, torch.from_numpy(np.concatenate(places)))


@dataclass(frozen=True, eq=False, slots=True)
class WordInputs:
    """The input of a tagger for some sentences.

    Attributes:
        tokens: The tokens of the sentences; None: ``rows`` holds states.
        rows: Index in ``tokens`` of the first token of each word, int64 (words,); or, if ``tokens``
            is None, the states of these tokens, float (words, hidden).
    """

    tokens: PackedTokens | None
    rows: Tensor

    def to(self, device: torch.device) -> WordInputs:
        """Copy the tensors to a device."""
        tokens = None if self.tokens is None else self.tokens.to(device)
        return WordInputs(tokens, self.rows.to(device))

    def emissions(self, model: TokenClassifier) -> Tensor:
        """Compute the logits of the words, float32 (words, labels)."""
        if self.tokens is None:
            return model.classify(self.rows)
        logits: Tensor = model(self.tokens, self.rows)
        return logits


def predict_emissions(model: TokenClassifier, rows: WordRows) -> list[NDArray[np.float32]]:
    """Compute the emissions of the words of each sentence in fp32, float32 (words, labels)."""
    found = [np.zeros((0, len(model.labels)), dtype=np.float32)] * len(rows.first)
    device = model.out.weight.device
    with torch.no_grad():
        for part in token_batches(rows.table.lengths, TOKENS_AT_ONCE):
            logits = rows.take(part).to(device).emissions(model).float().cpu().numpy()
            ends = np.cumsum([len(rows.first[row]) for row in part.tolist()])
            for row, own in zip(part.tolist(), np.split(logits, ends[:-1]), strict=True):
                found[row] = own
    return found


def tag_metrics(
    model: TokenClassifier, gold: Sequence[TaggedTokens], rows: WordRows | None = None
) -> dict[str, float]:
    """Compute F1, precision and recall of the entities of some sentences.

    Args:
        model: The tagger.
        gold: The sentences with their true tags. A word without a token is predicted as outside.
        rows: The tokenised sentences; None: this function tokenises them.

    Returns:
        The metrics by name; they are NaN if a logit is not finite.
    """
    rows = WordRows.of(model, gold) if rows is None else rows
    predicted = []
    found = predict_emissions(model, rows)
    for row, words, emissions in zip(gold, rows.words, found, strict=True):
        own = [OUTSIDE] * len(row.tags)
        for word, label in zip(words.tolist(), model.decode(emissions), strict=True):
            own[word] = model.labels[label]
        predicted.append(own)
    scores = entity_scores([row.tags for row in gold], predicted, model.scheme or "bio")
    metrics = {"f1": scores.f1, "precision": scores.precision, "recall": scores.recall}
    finite = all(np.isfinite(emissions).all() for emissions in found)
    return metrics if finite else dict.fromkeys(metrics, math.nan)
