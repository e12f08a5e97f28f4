"""Long texts as passages that a model reads whole."""

from __future__ import annotations

from collections.abc import Sequence


def windows(
    offsets: Sequence[tuple[int, int]],
    words: Sequence[int | None],
    n_chars: int,
    capacity: int,
    overlap: int = 0,
) -> list[tuple[int, int]]:
    """Cut a text after at most ``capacity`` tokens, between words where that is possible.

    Args:
        offsets: Start and end of each token in the text, in characters, in order.
        words: Number of the word that each token belongs to.
        n_chars: Length of the text.
        capacity: Most tokens of a passage, special ones not counted.
        overlap: Tokens that a passage shares with the one before, back to the start of a word.

    Returns:
        Start and end of each passage in characters. They cover the text from 0 to ``n_chars``;
        without overlap each begins where the one before ends.

    Raises:
        ValueError: ``capacity`` is below 1, or ``overlap`` is not below ``capacity``.
    """
    if capacity < 1 or not 0 <= overlap < capacity:
        raise ValueError(f"capacity is {capacity}, overlap {overlap}; 0 <= overlap < capacity.")
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
    """Step back from a token to where its word starts, or stay when the word fills the passage."""
    start = token
    while start > lowest and words[start] == words[start - 1]:
        start -= 1
    return start if words[start] != words[start - 1] else token
