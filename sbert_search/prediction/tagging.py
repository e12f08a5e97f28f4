"""Words of a text, their tags, and the entities that the tags denote."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbert_search.embedding.protocol import Vectors
from sbert_search.metrics.calibration import probabilities
from sbert_search.models.token_classifier import TokenClassifier
from sbert_search.prediction.results import TextEntities, TextEntity
from sbert_search.tag_schemes import OUTSIDE, entities
from sbert_search.tokens.tokenizer import Ids
from sbert_search.tokens.word_spans import TRUNCATED, CharSpan, encode_words

# A word may begin with "@" or "#", and have signs inside, as in "U.S" or "rock'n'roll". Every other
# character that is no blank is a word of its own.
# A word goes on over marks, such as combining accents, vowel signs and soft hyphens; a mark alone
# is no word. The pattern is applied to texts in which `_MARK` stands for every mark.
_MARK = "\u0300"
_MARKS = ("Mn", "Mc", "Me", "Cf")  # categories of Unicode
_WORD = re.compile(
    rf"[@#]?\w[\w{_MARK}]*(?:[-'\u2019.&_]{_MARK}*\w[\w{_MARK}]*)*|[^\w\s{_MARK}]{_MARK}*"
)
_ZERO_WIDTH_SPACE = "\u200b"  # of a category of marks, but it separates words

_CONTEXT = 32  # words that a part of a long text repeats from the part before it, as context


def words_of(text: str) -> list[CharSpan]:
    """Return the span of each word: the indices of its first character and after its last one."""
    if not text.isascii():
        text = "".join(
            _MARK if unicodedata.category(c) in _MARKS else c
            for c in text.replace(_ZERO_WIDTH_SPACE, " ")
        )
    return [match.span() for match in _WORD.finditer(text)]


@dataclass(slots=True)
class TaggingText:
    """A text whose words get their logits part by part, if it is too long for the model.

    Attributes:
        text: The text.
        words: Its words.
        n_labels: Number of labels of the model.
        logits: Logits of the words, float32 (words, labels).
        known: Whether the logits of a word are computed, bool (words,). They are not if the
            tokenizer makes no token of it.
        start: The first word of the part to compute next.
        need: The first word whose logits are missing.
    """

    text: str
    words: Sequence[CharSpan]
    n_labels: int
    logits: Vectors = field(init=False)
    known: NDArray[np.bool_] = field(init=False)
    start: int = 0
    need: int = 0

    def __post_init__(self) -> None:
        self.logits = np.zeros((len(self.words), self.n_labels), dtype=np.float32)
        self.known = np.zeros(len(self.words), dtype=np.bool_)

    @property
    def done(self) -> bool:
        """Whether no word is left to compute."""
        return self.need >= len(self.words)

    def next_part(self, n_words: int) -> tuple[str, list[CharSpan]]:
        """Return the text of ``n_words`` words (or fewer) from `start`, and their spans in it."""
        words = self.words[self.start : self.start + n_words]
        first, last = words[0][0], words[-1][1]
        return self.text[first:last], [(a - first, b - first) for a, b in words]

    def move(self, end: int, n_words: int) -> None:
        """Choose the next part, after one of ``n_words`` words.

        That part gave the logits of the words before ``end``. If it gave none, ``end`` is 0.
        """
        if end > self.need:
            self.start, self.need = max(self.start + 1, end - _CONTEXT), end
        elif self.start < self.need:  # the context fills the model: go on without it
            self.start = self.need
        else:  # the tokenizer makes no token of these words
            self.start = self.need = self.start + n_words


def encode_parts(
    model: TokenClassifier, texts: Sequence[TaggingText]
) -> tuple[list[Ids], list[list[int]], list[list[int]]]:
    """Encode the next part of each text and move the text to the part after it.

    Returns:
        Token ids of each part; the indices in the text of the words whose logits it gives; the
        index in the part's ids of the first token of each of these words.
    """
    limit = model.tokenizer.max_len  # more words than this have no room
    parts = [text.next_part(limit) for text in texts]
    encoded = encode_words(model.tokenizer, [part for part, _ in parts], [w for _, w in parts])
    numbers, rows = [], []
    for text, (_, words), first in zip(texts, parts, encoded.first, strict=True):
        own = [
            (text.start + n, row)
            for n, row in enumerate(first)
            if row != TRUNCATED and text.start + n >= text.need
        ]
        numbers.append([word for word, _ in own])
        rows.append([row for _, row in own])
        text.move(own[-1][0] + 1 if own else 0, len(words))
    return encoded.ids, numbers, rows


def tags_of_words(model: TokenClassifier, text: TaggingText) -> list[tuple[str, float]]:
    """Return the tag of each word and its probability.

    A word of which the tokenizer makes no token is ``O``. If the model's labels are no tags of
    entities and ``O`` is not one of them, the word has the first label.
    """
    outside = OUTSIDE if OUTSIDE in model.labels or model.scheme else model.labels[0]
    tagged = [(outside, 1.0)] * len(text.words)
    table = text.logits[text.known]
    if len(table):
        chosen = model.decode(table)
        chances = probabilities(table, "class", model.temperature)[np.arange(len(table)), chosen]
        words = np.flatnonzero(text.known)
        for word, label, chance in zip(words.tolist(), chosen, chances.tolist(), strict=True):
            tagged[word] = model.labels[label], chance
    return tagged


def entities_of(model: TokenClassifier, text: TaggingText) -> TextEntities:
    """Return the entities of a text all of whose words have logits."""
    tagged = tags_of_words(model, text)
    tags = [tag for tag, _ in tagged]
    if model.scheme is None:
        spans = [(tag, n, n + 1) for n, tag in enumerate(tags)]
    else:
        spans = [(kind, start, end) for kind, start, end in entities(tags, model.scheme)]
    return TextEntities(
        tuple(
            TextEntity(
                kind,
                start := text.words[first][0],
                end := text.words[last - 1][1],
                text.text[start:end],
                min(score for _, score in tagged[first:last]),
            )
            for kind, first, last in spans
        )
    )
