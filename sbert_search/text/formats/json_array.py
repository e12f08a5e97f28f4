"""Read JSON files that hold an array or a sequence of objects, in bounded memory."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import BinaryIO, cast

from sbert_search.text.formats.lines import DAMAGE, damaged, parse_object
from sbert_search.text.formats.rows import (
    BOM,
    NO_BUDGET,
    BadRow,
    RawRow,
    Reject,
    RowLimit,
    raw_rows,
)

_CHUNK = 1 << 16  # maximum bytes read at a time
_FILL = 8 << 10  # bytes of one read of the stream
_ALONE = 1 << 20  # maximum bytes of the only object of a file, if this object is a row

_SPACE = re.compile(rb"[ \t\r\n]*")
_SCALAR_END = re.compile(rb"[ \t\r\n,\]}]")
# From outside of strings to the next bracket, or to a string that does not end in the buffer; and
# from inside a string to its end. Possessive: a match takes no memory and never backtracks.
_REST = r'[^"\\]*+(?:\\.[^"\\]*+)*+'  # of a string
_OUTSIDE = re.compile(rf'[^"{{}}\[\]]*+(?:"{_REST}"[^"{{}}\[\]]*+)*+'.encode(), re.DOTALL)
_INSIDE = re.compile(_REST.encode(), re.DOTALL)
_BACKSLASH, _QUOTE = b'\\"'
_DEPTH = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}

_Item = bytes | BadRow
"""The bytes of a row, or why the row cannot be read."""


def read_json(
    stream: BinaryIO, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield one row per object of an array; messages call the first object ``item 1``.

    The file is an array of objects, or an object of which exactly one member is such an array, or a
    sequence of objects such as JSON lines. An item that is broken but has balanced brackets is
    rejected alone; if brackets or commas are wrong, one reject stands for the rest of the file.
    """
    items = enumerate(_items(stream, limit), start=1)
    return raw_rows(items, f"{shown}:item ", lambda item: parse_object(item, limit), skip)


def _items(stream: BinaryIO, limit: RowLimit) -> Iterator[_Item]:
    """Yield the rows of a file; if the rest cannot be read, the last item is a `BadRow`."""
    try:
        scanner = _Scanner(stream, limit)
        if scanner.take(b"["):
            yield from _array(scanner)
        elif scanner.peek() == b"{" and not scanner.starts_sequence():
            yield from _member(scanner)
        else:
            while scanner.peek() == b"{":
                yield scanner.value()
        if scanner.peek():
            yield BadRow("not a JSON array of objects from here on", scanner.near())
    except BadRow as bad:
        yield bad


def _array(scanner: _Scanner) -> Iterator[_Item]:
    """Yield the values of an array, of which the scanner has passed the opening bracket."""
    if scanner.take(b"]"):
        return
    while True:
        yield scanner.value()
        if scanner.take(b"]"):
            return
        if not scanner.take(b","):
            raise BadRow("no comma or closing bracket after the previous item", scanner.near())


def _member(scanner: _Scanner) -> Iterator[_Item]:
    """Yield the objects of an array that is a member of the file's only object.

    An array counts if its first value is an object; only one may.
    """
    found = False
    scanner.take(b"{")
    while scanner.peek() == b'"':
        name = scanner.value()
        if not scanner.take(b":"):
            break
        if not scanner.take(b"["):
            scanner.skip_value()
        elif scanner.peek() != b"{":
            scanner.skip_value(depth=1)
        elif found:
            shown = "" if isinstance(name, BadRow) else name.decode("utf-8", "replace")
            raise BadRow("a second array of objects; move it to a file of its own", shown)
        else:
            found = True
            yield from _array(scanner)
        if not scanner.take(b","):
            break
    if not scanner.take(b"}"):
        raise BadRow("broken JSON: a member or a closing bracket is missing here", scanner.near())
    if scanner.peek() == b"{":
        raise BadRow(
            "a second object follows the first; rename a file with one object per line to .jsonl"
        )
    if not found:
        raise BadRow(
            "the file holds neither an array of objects nor an object with such an array; if its "
            "only object is a document, rename the file to .jsonl"
        )


class _Scanner:
    """Finds the ends of JSON values in a stream, without parsing them.

    To pass a byte or a value means to move the reading position after it.
    """

    def __init__(self, stream: BinaryIO, limit: RowLimit) -> None:
        self._stream, self._limit = cast(io.BufferedReader, stream), limit
        self._data, self._at = bytearray(), 0
        while len(self._data) < len(BOM) and self._fill():
            pass
        if self._data.startswith(BOM):
            self._at = len(BOM)

    def peek(self) -> bytes:
        """Skip white space; return the next byte without passing it, b"" at the stream's end."""
        while True:
            space = _SPACE.match(self._data, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._data):
                return bytes(self._data[self._at : self._at + 1])
            self._data.clear()
            self._at = 0
            if not self._fill():
                return b""

    def take(self, byte: bytes) -> bool:
        """Skip white space, and pass the next byte if it is ``byte``; return whether it was."""
        if self.peek() != byte:
            return False
        self._at += 1
        return True

    def near(self) -> str:
        """Return the next bytes, at most 20, as text for a message."""
        return bytes(self._data[self._at : self._at + 20]).decode("utf-8", "replace")

    def value(self) -> _Item:
        """Pass the next value, and return it, or a `BadRow` if it is over the limit.

        A `BadRow` is raised if the value does not end.
        """
        value = self._value(0, self._limit.n_bytes)
        return BadRow(f"an item longer than {self._limit}") if value is None else value

    def skip_value(self, depth: int = 0) -> None:
        """Pass a value, of which ``depth`` opening brackets were passed before."""
        self._value(depth, 0)

    def starts_sequence(self) -> bool:
        """Whether the stream is a sequence of objects; False if the first object exceeds the limit.

        A single object is one if it is on one line, has at most `_ALONE` bytes and no array of
        objects as a member. The position in the stream does not change.
        """
        first = after = b""
        try:
            first = self._value(0, self._limit.n_bytes, stay=True) or b""
            after = self.peek() if first else b""
        except BadRow:  # the stream ends or is damaged; the next read raises this error again
            pass
        self._data[: self._at] = first
        self._at = 0
        if after or not 0 < len(first) <= _ALONE or b"\n" in first:
            return after == b"{"
        try:
            members = json.loads(first.decode("utf-8", "replace")).values()
        except (ValueError, RecursionError):
            return False
        lists = [value for value in members if isinstance(value, list) and value]
        return not any(isinstance(items[0], dict) for items in lists)

    def _value(self, depth: int, most: int, *, stay: bool = False) -> bytes | None:
        """Pass a value, of which ``depth`` brackets were passed; None if over ``most`` bytes.

        With ``stay``, a longer value is not passed. Otherwise its bytes are dropped as they come.
        """
        if self._at > _CHUNK:
            del self._data[: self._at]
            self._at = 0
        at, quoted, is_whole = self._at, False, True
        if depth == 0:
            first = self.peek()
            if first not in (b"{", b"[", b'"'):
                return self._scalar()
            at, quoted, depth = self._at + 1, first == b'"', int(first != b'"')
        while depth > 0 or quoted:
            run = (_INSIDE if quoted else _OUTSIDE).match(self._data, at)
            at = run.end() if run else at
            if at == len(self._data) or self._data[at] == _BACKSLASH:
                if at - self._at > most:
                    if stay:
                        return None
                    is_whole = False
                    del self._data[:at]
                    self._at = at = 0
                if not self._fill():
                    raise BadRow("the file ends inside this item")
                continue
            byte = self._data[at]
            at += 1
            quoted ^= byte == _QUOTE
            depth += _DEPTH.get(byte, 0)
        is_whole &= at - self._at <= most
        if stay and not is_whole:
            return None
        data = bytes(self._data[self._at : at]) if is_whole else None
        self._at = at
        return data

    def _scalar(self) -> bytes:
        """Return a number or a word such as null, and pass it."""
        while (end := _SCALAR_END.search(self._data, self._at)) is None:
            if len(self._data) - self._at > _CHUNK or not self._fill():
                break
        start, self._at = self._at, end.start() if end else len(self._data)
        if start == self._at:
            raise BadRow("broken JSON: a value is missing here", self.near())
        return bytes(self._data[start : self._at])

    def _fill(self) -> bool:
        """Append the next bytes of the stream to the buffer; return whether there were any."""
        try:
            # Damaged compressed data lose the whole read that meets the damage.
            chunk = self._stream.read1(_FILL)
        except DAMAGE as error:
            raise damaged(error) from None
        self._data += chunk
        return bool(chunk)
