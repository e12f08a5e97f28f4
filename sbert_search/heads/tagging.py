"""Find the words of a text, their tags, and the entities that the tags denote."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import Vectors
from sbert_search.evaluate.metrics.calibration import probabilities
from sbert_search.heads.results import TextEntities, TextEntity
from sbert_search.models.token_classifier import TokenClassifier
from sbert_search.tag_schemes import OUTSIDE, entities
from sbert_search.text.tokens.tokenizer import Ids
from sbert_search.text.tokens.windows import TRUNCATED, CharSpan, encode_words

# A word is a run of letters, digits and underscores. It may begin with "@" or "#", and have signs
# inside, as in "U.S" or "rock'n'roll". Every other character that is no blank is a word of its own.
# A mark, such as a combining accent, a vowel sign or a soft hyphen, belongs to the word before it.
# A mark alone is no word. `words_of` replaces each mark by `_MARK` before it applies the pattern.
_MARK = "\u0300"
_MARKS = ("Mn", "Mc", "Me", "Cf")  # Unicode categories of marks
_WORD = re.compile(
    rf"[@#]?\w[\w{_MARK}]*(?:[-'\u2019.&_]{_MARK}*\w[\w{_MARK}]*)*|[^\w\s{_MARK}]{_MARK}*"
)
_ZERO_WIDTH_SPACE = "\u200b"  # its category, Cf, is in `_MARKS`, but it separates words

_CONTEXT = 32  # words that a part of a long text repeats from the part before it, as context


def words_of(text: str) -> list[CharSpan]:
    """Return the start and end of each word, in characters; the end is after its last character."""
    if not text.isascii():
        text = "".join(
            _MARK if unicodedata.category(c) in _MARKS else c
            for c in text.replace(_ZERO_WIDTH_SPACE, " ")
        )
    return [match.span() for match in _WORD.finditer(text)]


@dataclass(slots=True)
class TaggingText:
    """A text to tag, whose logits are computed part by part if it is too long for the model.

    Attributes:
        text: The text.
        words: Start and end of each word in the text, in characters.
        n_labels: Number of labels of the model.
        logits: Logits of the words, float32 (words, labels).
        known: Whether the logits of each word have been computed, bool (words,). A word that the
            tokenizer turns into no token never gets logits.
        start: Index of the first word of the next part; words before ``need`` are its context.
        need: Index of the first word whose logits are still to be computed.
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
        """Whether no word is left whose logits are to be computed."""
        return self.need >= len(self.words)

    def next_part(self, n_words: int) -> tuple[str, list[CharSpan]]:
        """Return the part of at most ``n_words`` words that begins with the word ``start``.

        Returns:
            The text of the part, and the span of each of its words in this text.
        """
        words = self.words[self.start : self.start + n_words]
        first, last = words[0][0], words[-1][1]
        return self.text[first:last], [(a - first, b - first) for a, b in words]

    def move(self, end: int, n_words: int) -> None:
        """Choose the next part of the text.

        Args:
            end: Index after the last word whose logits the last part gives; 0: it gives none.
            n_words: Number of words of the last part.
        """
        if end > self.need:
            self.start, self.need = max(self.start + 1, end - _CONTEXT), end
        elif self.start < self.need:  # the context filled the whole part: go on without it
            self.start = self.need
        else:  # the tokenizer makes no token of these words
            self.start = self.need = self.start + n_words


def encode_parts(
    model: TokenClassifier, texts: Sequence[TaggingText]
) -> tuple[list[Ids], list[list[int]], list[list[int]]]:
    """Encode the next part of each text, and move each text on to the part after it.

    Returns:
        Three lists with one item for each text: the token ids of the part; the indices of the words
        of the text whose logits the part gives; and, for each of these words, the index of its
        first token in the token ids.
    """
    limit = model.tokenizer.max_len  # the model can read no more words than tokens
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

    A word that the tokenizer turns into no token has the tag ``O`` with probability 1. If the
    labels of the model do not mark entities and do not contain ``O``, it has the first label.
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
    """Return the entities of a text whose logits have been computed.

    If the labels of the model do not mark entities, each word is returned with its tag.
    """
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
