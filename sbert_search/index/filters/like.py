r"""SQL's LIKE: ``%`` matches any text, ``_`` any character, ``\`` escapes the next character.

docs/decisions.md: LIKE is translated to a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

MAX_PATTERN = 10_000  # characters; Arrow's engine refuses some regular expressions of 50,000
_MARKS = {"%": "(?s:.*)", "_": "(?s:.)"}
_RUN = re.compile(r"(?P<any>%)[%]*|(?P<one>_)|\\(?P<escaped>.)|(?P<text>[^%_\\]+)", re.DOTALL)

Match = Callable[[pa.Array], pa.Array]


def like(pattern: str, *, ignore_case: bool) -> Match:
    """Return a function that tells for each text whether it matches a pattern; null for null.

    Args:
        pattern: The pattern, of at most `MAX_PATTERN` characters.
        ignore_case: Compare letters by Unicode's simple case folding.

    Raises:
        ValueError: The pattern is too long or ends in a backslash.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"the pattern has more than {MAX_PATTERN:,} characters")
    parts = list(_parts(pattern))
    if not ignore_case and (simple := _simple(parts)):
        return simple
    flag = "(?i)" if ignore_case else ""
    body = "".join(_MARKS[mark] if mark else re.escape(text) for mark, text in parts)
    expression = rf"{flag}\A{body}\z"
    return lambda texts: pc.match_substring_regex(texts, expression)


def _parts(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a pattern: ``(wildcard, "")``, or ``("", text)`` without escapes.

    Raises:
        ValueError: The pattern ends in a backslash that escapes nothing.
    """
    text, end = "", 0
    for part in _RUN.finditer(pattern):
        end = part.end()
        if mark := part["any"] or part["one"]:
            if text:
                yield "", text
            yield mark, ""
            text = ""
        else:
            text += part["escaped"] or part["text"]
    if end < len(pattern):
        raise ValueError("a backslash at the end of a pattern escapes nothing; write two")
    if text:
        yield "", text


def _simple(parts: list[tuple[str, str]]) -> Match | None:
    """Return a function without a regular expression for x, x%, %x and %x%; None for the rest."""
    marks = [mark for mark, _ in parts]
    text = "".join(text for _, text in parts)
    match marks:
        case [] | [""]:
            return lambda texts: pc.equal(texts, pa.scalar(text, texts.type))
        case ["", "%"]:
            return lambda texts: pc.starts_with(texts, text)
        case ["%", ""]:
            return lambda texts: pc.ends_with(texts, text)
        case ["%", "", "%"]:
            return lambda texts: pc.match_substring(texts, text)
    return None
