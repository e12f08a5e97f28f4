"""Split long texts into passages that fit a model, and into pieces that fit into memory.

A passage is what the model embeds. A piece is what the tokenizer gets at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

PIECE_CHARS = 1 << 17  # limits memory: a tokenizer's result takes about 300 bytes per token

Spans = list[tuple[int, int]]


def pieces(text: str, n_chars: int = PIECE_CHARS) -> Iterator[str]:
    """Split a text into pieces of at most ``n_chars`` characters, before a blank if possible."""
    start = 0
    while len(text) - start > n_chars:
        stop = start + n_chars
        blank = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
        stop = blank if blank > 0 else stop
        yield text[start:stop]
        start = stop
    yield text[start:]


def split_by_pieces(text: str, split: Callable[[str], Spans]) -> Spans:
    """Split a text into passages by a function that gets only one piece of the text at a time.

    The last passage of a piece is split again, together with the text that follows. So the passages
    are the same as if the function got the whole text.

    Args:
        text: The text.
        split: Function that returns start and end of each passage of a text, in characters.
    """
    spans: Spans = []
    start, size = 0, PIECE_CHARS
    while start + size < len(text):
        passages = split(text[start : start + size])
        if len(passages) < 2:
            size *= 2
            continue
        spans += [(start + first, start + last) for first, last in passages[:-1]]
        start, size = start + passages[-1][0], PIECE_CHARS
    return spans + [(start + first, start + last) for first, last in split(text[start:])]


def windows(
    offsets: Sequence[tuple[int, int]],
    words: Sequence[int | None],
    n_chars: int,
    capacity: int,
    overlap: int = 0,
) -> list[tuple[int, int]]:
    """Split a text into passages of at most ``capacity`` tokens, between words if possible.

    Args:
        offsets: Start and end of each token in the text, in characters, in order.
        words: Index of the word of each token.
        n_chars: Length of the text in characters.
        capacity: Maximum number of tokens in a passage, without special tokens.
        overlap: Number of tokens that a passage shares with the passage before. It may share more,
            since a passage starts at the start of a word.

    Returns:
        Start and end of each passage in characters. The passages cover the text; without overlap
        each passage starts at the end of the passage before.

    Raises:
        ValueError: ``capacity`` is below 1, or ``overlap`` is not below ``capacity``.
    """
    if capacity < 1 or not 0 <= overlap < capacity:
        raise ValueError(f"capacity is {capacity}, overlap {overlap}; use 0 <= overlap < capacity.")
    spans, first = [], 0
    while first + capacity < len(offsets):
        last = _word_start(words, first + capacity, lowest=first + 1)
        spans.append((first, last))
        first = max(_word_start(words, last - overlap, lowest=first + 1), first + 1)
    spans.append((first, len(offsets)))
    starts = [0] + [offsets[first][0] for first, _ in spans[1:]]
    ends = [offsets[last][0] for _, last in spans[:-1]] + [n_chars]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def _word_start(words: Sequence[int | None], token: int, lowest: int) -> int:
    """Return the index of the first token of the word that contains ``token``.

    If the word begins before the token ``lowest``, return ``token`` itself: the word is cut.
    """
    start = token
    while start > lowest and words[start] == words[start - 1]:
        start -= 1
    return start if words[start] != words[start - 1] else token
