"""Windows of a long text, and tokens of given words, for models that mark parts of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sbert_search.text.tokens.tokenizer import Ids, TextTokenizer


@dataclass(frozen=True, slots=True)
class Window:
    """A question and a part of its context as token ids.

    Attributes:
        ids: Token ids, special tokens included.
        types: Segment id of each token.
        start: Index in ``ids`` of the first token of the context.
        offsets: For each token of the context in this window, the index of its first character in
            the context, and the index after its last character.
    """

    ids: Ids
    types: Ids
    start: int
    offsets: list[tuple[int, int]]


def encode_windows(
    tokenizer: TextTokenizer,
    question: str,
    context: str,
    *,
    overlap: int = 128,
    max_question: int = 64,
) -> list[Window]:
    """Split a context into windows that, with the question, have at most ``max_len`` tokens each.

    Args:
        tokenizer: The tokenizer.
        question: The question, which is the first text of each window.
        context: The text in which the answer is searched; an empty text gives one window.
        overlap: Number of context tokens that neighbouring windows share, at most half of the
            context tokens of a window. A larger value is lowered to this limit.
        max_question: Number of tokens after which the question is truncated, at most half of the
            tokens of a window without special tokens. A larger value is lowered to this limit.

    Raises:
        CorpusError: A text is not a string, or has a lone surrogate, which UTF-8 cannot encode.

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
            )
        )
        start += step
        if start - step + room >= len(tokens):
            return windows


TRUNCATED = -1  # instead of the index of a token, for a word that has no token

CharSpan = tuple[int, int]
"""Index of the first character of a word, and index after its last character."""


@dataclass(frozen=True, slots=True)
class EncodedWords:
    """Texts as token ids.

    Attributes:
        ids: Token ids of each text, special tokens included.
        first: For each text, the index in its ids of the first token of each word; `TRUNCATED` if
            truncation removed that token, or if the tokenizer makes no token of the word.
    """

    ids: list[Ids]
    first: list[list[int]]


def encode_words(
    tokenizer: TextTokenizer, texts: Sequence[str], spans: Sequence[Sequence[CharSpan]]
) -> EncodedWords:
    """Turn texts into token ids, and find the first token of each word.

    Args:
        tokenizer: The tokenizer; its ``max_len`` limits the tokens of a text.
        texts: The texts.
        spans: Characters of each word of each text, in the order of the words in the text.

    Raises:
        CorpusError: A text is not a string, or has a lone surrogate, which UTF-8 cannot encode.
    """
    frame, room = tokenizer.single, tokenizer.max_len - tokenizer.single.size
    ids, first = [], []
    for (tokens, offsets), words in zip(tokenizer.encode_offsets(texts), spans, strict=True):
        ids.append([*frame.before, *tokens[:room], *frame.after])
        found = _first_tokens(offsets, words)
        before = len(frame.before)
        first.append([before + n if 0 <= n < room else TRUNCATED for n in found])
    return EncodedWords(ids, first)


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
