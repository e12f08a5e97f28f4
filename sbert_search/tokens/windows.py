"""Split a long text into overlapping windows that a model reads together with a question."""

from __future__ import annotations

from dataclasses import dataclass

from sbert_search.tokens.tokenizer import Ids, TextTokenizer


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
