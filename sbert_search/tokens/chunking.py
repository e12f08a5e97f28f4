"""Long texts as passages that a model reads whole, and as pieces that memory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

PIECE_CHARS = 1 << 17  # of a long text that is tokenised at a time: a token takes 300 bytes then

Spans = list[tuple[int, int]]


def pieces(text: str, n_chars: int = PIECE_CHARS) -> Iterator[str]:
    """Cut a text before blanks, or anywhere where there are none, into pieces of about a length."""
    start = 0
    while len(text) - start > n_chars:
        stop = start + n_chars
        blank = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
        stop = blank if blank > 0 else stop
        yield text[start:stop]
        start = stop
    yield text[start:]


def split_by_pieces(text: str, split: Callable[[str], Spans]) -> Spans:
    """Cut a text into passages by a function that is never given much more than a piece of it.

    The last passage of a piece is cut again with what follows it, so the passages are those that
    the function makes of the whole text.

    Args:
        text: What to cut.
        split: Start and end of each passage of a text, in characters.
    """
    spans: Spans = []
    start, size = 0, PIECE_CHARS
    while start + size < len(text):
        found = split(text[start : start + size])
        if len(found) < 2:
            size *= 2
            continue
        spans += [(start + first, start + last) for first, last in found[:-1]]
        start, size = start + found[-1][0], PIECE_CHARS
    return spans + [(start + first, start + last) for first, last in split(text[start:])]


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
