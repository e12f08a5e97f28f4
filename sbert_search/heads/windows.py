"""Windows of a long text, and what their logits say: tags of words, entities, the best answer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbert_search.embed.protocol import Vectors
from sbert_search.heads.calibration import probabilities
from sbert_search.heads.results import TextAnswer, TextEntities, TextEntity
from sbert_search.models.token_classifier import QuestionAnswerer, TokenClassifier, best_spans
from sbert_search.tag_schemes import OUTSIDE, Entity, entities
from sbert_search.text.tokens.tokenizer import Ids, TextTokenizer


@dataclass(frozen=True, slots=True)
class Window:
    """A question and a part of its context as token ids, special tokens included."""

    ids: Ids
    types: Ids  # segment id of each token
    start: int  # index in ids of the first token of the context
    # characters in the context of each of its tokens here; end exclusive
    offsets: list[tuple[int, int]]
    first: int = 0  # index of the first of these tokens among all of the context


def encode_windows(
    tokenizer: TextTokenizer,
    question: str,
    context: str,
    *,
    overlap: int = 128,
    max_question: int = 64,
) -> list[Window]:
    """Split a context into windows that, with the question, have at most ``max_len`` tokens each.

    ``overlap`` is the number of context tokens that neighbouring windows share, at most half of
    those of a window. The question is truncated after ``max_question`` tokens, at most half of a
    window. An empty context gives one window.

    Source: run_squad.py of Devlin et al. 2019. transformers calls ``overlap`` ``stride``.
    """
    frame, limit = tokenizer.pair, tokenizer.max_len
    (asked, _), (tokens, offsets) = tokenizer.encode_offsets([question, context])
    asked = asked[: min(max_question, (limit - frame.size) // 2)]
    room = limit - frame.size - len(asked)
    step = room - min(overlap, room // 2)
    windows, start = [], 0
    while True:
        part = tokens[start : start + room]
        parts = (frame.before, asked, frame.between, part, frame.after)
        windows.append(
            Window(
                [token for ids in parts for token in ids],
                [kind for kind, ids in zip(frame.types, parts, strict=True) for _ in ids],
                sum(map(len, parts[:3])),
                offsets[start : start + room],
                start,
            )
        )
        start += step
        if start - step + room >= len(tokens):
            return windows


TRUNCATED = -1  # instead of the index of a token, for a word that has no token

CharSpan = tuple[int, int]
"""Index of the first character of a word, and index after its last character."""


def encode_words(
    tokenizer: TextTokenizer, texts: Sequence[str], spans: Sequence[Sequence[CharSpan]]
) -> tuple[list[Ids], list[list[int]]]:
    """Turn texts into at most ``max_len`` token ids, and find the first token of each word.

    The first list has the ids of each text, special tokens included; the second one for each text
    the index in its ids of the first token of each word. It is `TRUNCATED` if truncation removed
    that token, or if the tokenizer makes no token of the word.
    """
    frame, room = tokenizer.single, tokenizer.max_len - tokenizer.single.size
    ids, first, before = [], [], len(tokenizer.single.before)
    for (tokens, offsets), words in zip(tokenizer.encode_offsets(texts), spans, strict=True):
        ids.append([*frame.before, *tokens[:room], *frame.after])
        found = _first_tokens(offsets, words)
        first.append([before + n if 0 <= n < room else TRUNCATED for n in found])
    return ids, first


def join_words(words: Sequence[str]) -> tuple[str, list[CharSpan]]:
    """Join words by blanks; return the text and the span of each word in the text."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), spans


def _first_tokens(offsets: Sequence[CharSpan], words: Sequence[CharSpan]) -> list[int]:
    """Return, for each word, the index of the first token inside it; -1 if there is none."""
    found, token = [], 0
    for start, end in words:
        while token < len(offsets) and offsets[token][1] <= start:
            token += 1
        while token < len(offsets) and offsets[token][0] == offsets[token][1]:
            token += 1  # skip a token that covers no character
        shares = token < len(offsets) and offsets[token][0] < end and offsets[token][1] > start
        found.append(token if shares else TRUNCATED)
    return found


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
    """A text to tag, whose logits are computed part by part if it is too long for the model."""

    text: str
    words: Sequence[CharSpan]  # start and end of each, in characters
    n_labels: int
    logits: Vectors = field(init=False)  # (words, labels)
    # which logits have been computed; never those of a word without a token
    known: NDArray[np.bool_] = field(init=False)
    start: int = 0  # first word of the next part; words before need are its context
    need: int = 0  # first word whose logits are still to be computed

    def __post_init__(self) -> None:
        self.logits = np.zeros((len(self.words), self.n_labels), dtype=np.float32)
        self.known = np.zeros(len(self.words), dtype=np.bool_)

    @property
    def done(self) -> bool:
        """Whether no word is left whose logits are to be computed."""
        return self.need >= len(self.words)

    def next_part(self, n_words: int) -> tuple[str, list[CharSpan]]:
        """Return the text of the part from the word ``start`` on, and its words' spans in it."""
        words = self.words[self.start : self.start + n_words]
        first, last = words[0][0], words[-1][1]
        return self.text[first:last], [(a - first, b - first) for a, b in words]

    def move(self, end: int, n_words: int) -> None:
        """Choose the next part of the text, after a part of ``n_words`` words.

        ``end`` is the index after the last word whose logits that part gives; 0: it gives none.
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

    Three lists with one item for each text: the token ids of the part; the indices of the words of
    the text whose logits the part gives; and the index in the ids of each word's first token.
    """
    limit = model.tokenizer.max_len  # the model can read no more words than tokens
    parts = [text.next_part(limit) for text in texts]
    ids, first_tokens = encode_words(
        model.tokenizer, [part for part, _ in parts], [words for _, words in parts]
    )
    numbers, rows = [], []
    for text, (_, words), first in zip(texts, parts, first_tokens, strict=True):
        own = [
            (text.start + n, row)
            for n, row in enumerate(first)
            if row != TRUNCATED and text.start + n >= text.need
        ]
        numbers.append([word for word, _ in own])
        rows.append([row for _, row in own])
        text.move(own[-1][0] + 1 if own else 0, len(words))
    return ids, numbers, rows


def tags_of_words(model: TokenClassifier, text: TaggingText) -> list[tuple[str, float]]:
    """Return the tag of each word and its probability.

    A word without a token has the tag ``O`` with probability 1. If the labels of the model do not
    mark entities and do not contain ``O``, it has the first label.
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
    spans = [Entity(tag, n, n + 1) for n, (tag, _) in enumerate(tagged)]
    if model.scheme is not None:
        # Words without a token are left out, as in training; an entity may go on behind one.
        known = np.flatnonzero(text.known).tolist()
        spans = [
            Entity(kind, known[first], known[last - 1] + 1)
            for kind, first, last in entities([tagged[n][0] for n in known], model.scheme)
        ]
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


Floats = NDArray[np.float64]


@dataclass(slots=True)
class AskedText:
    """A text in which a question is answered, and the logits of its windows, filled in later.

    ``logits`` are by the index of the window, float32 (1 + tokens of the text in the window, 2),
    for start and end. The first row stands for "no answer".
    """

    text: str
    windows: Sequence[Window]
    logits: dict[int, Vectors] = field(default_factory=dict)


def rows_of(window: Window) -> list[int]:
    """Return the indices of the tokens whose logits `best_answer` needs.

    They are the first token, which stands for "no answer", and the tokens of the text.
    """
    return [0, *range(window.start, window.start + len(window.offsets))]


def best_answer(
    model: QuestionAnswerer, asked: AskedText, *, max_tokens: int, threshold: float
) -> TextAnswer:
    """Choose the span with the highest score among the spans of all windows, or "no answer".

    The score of a span is the start logit of its first token plus the end logit of its last token.
    The score of "no answer" is the lowest of its scores in the windows: a window without the answer
    rightly gives it a high score, even if another window contains the answer. There is no answer if
    that score exceeds the best span's by more than ``threshold``, or if the span is blank.
    """
    tables = [asked.logits[number] for number in range(len(asked.windows))]
    null = min(float(table[0].sum()) for table in tables)
    found = [
        (span.score, -number, span.first, span.last)
        for number, table in enumerate(tables)
        for span in best_spans(table[1:, 0], table[1:, 1], n=1, max_tokens=max_tokens)
    ]
    if not found:
        return TextAnswer("", 0, 0, 1.0, 0.0)  # the text has no tokens
    score, number, first, last = max(found)
    margin = score - null
    every = _of_all_tokens(asked.windows, tables)
    chance = _chance(every, score, null, model.temperature)
    offsets = asked.windows[-number].offsets
    start, end = offsets[first][0], offsets[last][1]
    answer = asked.text[start:end].rstrip()  # tokens may begin or end with a blank
    end = start + len(answer)
    answer = answer.lstrip()
    if -margin > threshold or not answer:
        return TextAnswer("", 0, 0, _chance(every, null, null, model.temperature), margin)
    return TextAnswer(answer, end - len(answer), end, chance, margin)


def _of_all_tokens(windows: Sequence[Window], tables: Sequence[Vectors]) -> Floats:
    """Return the logits of all tokens of a text, (tokens, 2), the highest over windows."""
    found = np.full((max(w.first + len(w.offsets) for w in windows), 2), -np.inf)
    for window, table in zip(windows, tables, strict=True):
        own = found[window.first : window.first + len(window.offsets)]
        np.maximum(own, table[1:], out=own)
    return found


def _chance(logits: Floats, score: float, null: float, temperature: float) -> float:
    """Return the probability of a span: that of its start times that of its end.

    Both are softmax probabilities over the tokens of the text and "no answer", which counts as one
    more start and one more end, each with the logit ``null / 2``.
    """
    logs = sum(_log_sum(np.append(own, null / 2) / temperature) for own in logits.T)
    return float(np.exp(score / temperature - logs))


def _log_sum(values: Floats) -> float:
    top = float(values.max())  # subtracted before exp, which could overflow otherwise
    return top + float(np.log(np.exp(values - top).sum()))
