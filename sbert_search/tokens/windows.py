"""Overlapping windows of a long text that is read together with a question."""

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
        offsets: First character, and the character after the last, of each token of the context
            in this window.
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
    """Split a context into windows that fit, each with the question, into ``max_len`` tokens.

    Args:
        tokenizer: The tokenizer.
        question: The question, which comes first.
        context: The text to read; even an empty one gives one window.
        overlap: Tokens that neighbouring windows share; at most half of a window's tokens of the
            context.
        max_question: Maximum number of tokens of the question, which is cut after them; at most
            half of ``max_len`` without special tokens.

    Source: Devlin et al. 2019's run_squad.py; ``overlap`` is the ``stride`` of transformers.
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
