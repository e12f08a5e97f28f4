"""Text of unknown origin, made fit for a terminal."""

from __future__ import annotations

import re

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Write control characters as escapes, so that no terminal obeys a document or a file name.

    Line ends and tabs stay. Lone surrogates, which no encoding can write, become escapes too.
    ``\x1b[2J``, which would clear a screen, is shown as these six characters.
    """
    return text if text.isprintable() else _HIDDEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
