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
        offsets: For each token of the context in this window, the index of its first character in
            the context, and the index after its last.
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
        overlap: Number of context tokens that neighbouring windows share. It is lowered to half of
            the context tokens of a window if it is larger.
        max_question: Maximum number of tokens of the question; further tokens are left out. It is
            lowered to half of the tokens of a window, without special tokens, if it is larger.

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
