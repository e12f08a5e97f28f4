"""What may be shown: text without control characters, and URLs without passwords."""

from __future__ import annotations

import re

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# The user and the password of a URL, also if a password has a slash or the scheme is missing.
_USER = re.compile(r"^([a-z][a-z0-9+.-]+:/+).*@|^[^/\\@]*:[^/\\]*@", re.IGNORECASE)


def visible(text: str) -> str:
    r"""Escape control characters, so that a document or file name cannot control the terminal.

    Line feeds and tabs stay; carriage returns are escaped. Lone surrogates, which UTF-8 cannot
    encode, are escaped too.
    The escape sequence that clears a screen is shown as the text ``\x1b[2J``.
    """
    return text if text.isprintable() else _HIDDEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def shown_url(url: str) -> str:
    """Return a URL or a path without user and password, for messages and files."""
    return _USER.sub(r"\1", url)
