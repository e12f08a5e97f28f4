"""The output of all format readers: raw rows, and rejects for rows that cannot be read.

A reader yields one item per input row, so counting items counts rows. Only after damage in a file,
one reject may stand for all rows that follow. `CorpusReader` decides whether a bad row stops the
work or is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from sbert_search.errors import CorpusError

EXCERPT_CHARS = 80

_Text = TypeVar("_Text", str, bytes)


@dataclass(frozen=True, slots=True)
class Reject:
    """One input row that cannot be used.

    Attributes:
        source: Position of the row, such as ``file:17`` (line) or ``file:row group 3:row 17``.
        reason: Why the row cannot be used.
        value: A short excerpt of the bad content, or "".
    """

    source: str
    reason: str
    value: str = ""

    def error(self, remedy: str = "Fix it.") -> CorpusError:
        """Return an error whose message has the position, the reason, the value and a remedy."""
        shown = f" ({self.value})" if self.value else ""
        return CorpusError(f"{self.source}: {self.reason}{shown}. {remedy}")


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row of a file, with values that are not checked yet.

    Attributes:
        source: Position of the row, as in `Reject`.
        number: Number of the row in the file, from 1: of its line in text formats, of its page in
            PDF files.
        values: Values by field name; None means the same as a missing field.
        typed: False if the format has no types (CSV, TSV), so that every value is text.
        fingerprint: For a row that is a whole file or a page of a PDF file: a hash computed from
            the bytes of the file, by which an index recognises that the file was changed. None: the
            file holds rows.
    """

    source: str
    number: int
    values: Mapping[str, object]
    typed: bool = True
    fingerprint: int | None = None

    @property
    def text(self) -> str:
        """The field ``text``, which a row of plain text has."""
        return str(self.values["text"])


class BadRow(Exception):  # noqa: N818 (internal: callers turn it into a Reject)
    """A row cannot be used. `at` makes a `Reject` of it once the position is known."""

    def __init__(self, reason: str, value: object = None) -> None:
        self.reason = reason
        self.value = "" if value is None else excerpt(value)
        super().__init__(reason)

    def at(self, source: str) -> Reject:
        """Return a `Reject` for the row at the position ``source``."""
        return Reject(source, self.reason, self.value)


def excerpt(value: object) -> str:
    """Return the `repr` of a value, cut to `EXCERPT_CHARS` characters."""
    if isinstance(value, (str, bytes)):
        value = value[: EXCERPT_CHARS + 1]
    shown = repr(value)
    return shown if len(shown) <= EXCERPT_CHARS else shown[: EXCERPT_CHARS - 3] + "..."


def printable(path: str | os.PathLike[str]) -> str:
    """Return a path as valid Unicode; undecodable bytes become backslash escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def check_text(value: str, name: str) -> str:
    """Return the value if UTF-8 can encode it and it has no NUL, which would end a C string.

    The readers of CSV, TSV, Parquet and Arrow decode invalid UTF-8 bytes to lone surrogates, so
    this function finds these bytes too. Most other readers use `decode`, which refuses them.

    Raises:
        BadRow: The value has a lone surrogate or a NUL character.
    """
    if "\0" in value:
        raise BadRow(f"NUL character in {name!r}", _around(value, value.index("\0")))
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            reason = f"invalid UTF-8 or a lone surrogate in {name!r}"
            raise BadRow(reason, _around(value, error.start)) from None
    return value


def decode(data: bytes) -> str:
    """Decode UTF-8.

    Raises:
        BadRow: The bytes are not UTF-8; the reason has the position of the first bad byte, from 1.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "; is it UTF-16?" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
        reason = f"invalid UTF-8 at byte {error.start + 1}{hint}"
        raise BadRow(reason, _around(data, error.start)) from None


def _around(value: _Text, position: int) -> _Text:
    return value[max(0, position - 20) : position + 20]
