"""Read JSON files that hold an array or a sequence of objects, in bounded memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from sbert_search.text.formats.lines import BOM, DAMAGE, damage_reason, parse_object
from sbert_search.text.formats.rows import NO_BUDGET, BadRow, RawRow, Reject, RowLimit

_CHUNK = 1 << 16  # maximum bytes read at a time; a read also stops at the end of a line
_ALONE = 1 << 20  # maximum bytes of the only object of a file, if this object is a row

_SPACE = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"[^ \t\r\n,\]}]+")
_STRUCTURE = re.compile(rb'["{}\[\]]')
_IN_STRING = re.compile(rb'["\\]')
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
    for number, item in enumerate(_items(stream, limit), start=1):
        if number <= skip:
            continue
        source = f"{shown}:item {number}"
        try:
            if isinstance(item, BadRow):
                raise item
            limit.check_json(item)
            yield RawRow(source, number, parse_object(item))
        except BadRow as bad:
            yield bad.at(source)


def _items(stream: BinaryIO, limit: RowLimit) -> Iterator[_Item]:
    """Yield the rows of a file; if the rest cannot be read, the last item is a `BadRow`."""
    try:
        scanner = _Scanner(stream, limit)
        first = scanner.peek()
        if first == b"[":
            scanner.step()
            yield from _array(scanner)
        elif first == b"{" and not scanner.starts_sequence():
            scanner.step()
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
    if scanner.peek() == b"]":
        scanner.step()
        return
    while True:
        yield scanner.value()
        after = scanner.peek()
        if after not in (b",", b"]"):
            raise BadRow("no comma or closing bracket after the previous item", scanner.near())
        scanner.step()
        if after == b"]":
            return


def _member(scanner: _Scanner) -> Iterator[_Item]:
    """Yield the objects of an array that is a member of the file's only object.

    The scanner has passed the opening brace. An array counts if its first value is an object; only
    one may.
    """
    found = False
    while scanner.peek() == b'"':
        name = _shown(scanner.value())
        if scanner.peek() != b":":
            break
        scanner.step()
        if scanner.peek() != b"[":
            scanner.skip_value()
        else:
            scanner.step()
            if scanner.peek() != b"{":
                scanner.skip_value(depth=1)
            elif found:
                raise BadRow("a second array of objects; move it to a file of its own", name)
            else:
                found = True
                yield from _array(scanner)
        if scanner.peek() != b",":
            break
        scanner.step()
    if scanner.peek() != b"}":
        raise BadRow("broken JSON: a member or a closing bracket is missing here", scanner.near())
    scanner.step()
    if scanner.peek() == b"{":
        raise BadRow(
            "a second object follows the first; rename a file with one object per line to .jsonl"
        )
    if not found:
        raise BadRow(
            "the file holds neither an array of objects nor an object with such an array; if its "
            "only object is a document, rename the file to .jsonl"
        )


def _shown(name: _Item) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else ""


class _Scanner:
    """Finds the ends of JSON values in a stream, without parsing them.

    To pass a byte or a value means to move the reading position after it.
    """

    def __init__(self, stream: BinaryIO, limit: RowLimit) -> None:
        self._stream, self._limit = stream, limit
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
            self._forget()
            if not self._fill():
                return b""

    def step(self) -> None:
        """Pass the byte that `peek` returned."""
        self._at += 1

    def near(self) -> str:
        """Return the next bytes, at most 20, as text for a message."""
        return bytes(self._data[self._at : self._at + 20]).decode("utf-8", "replace")

    def value(self) -> _Item:
        """Return the value that begins at the byte that `peek` returns, and pass it.

        A `BadRow` is returned for a value over the limit, and raised if the value does not end.
        """
        return self._value(0, self._limit.n_bytes)

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
            item = self._value(0, self._limit.n_bytes, stay=True)
            if isinstance(item, bytes):
                first = item
                after = self.peek()
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

    def _value(self, depth: int, most: int, *, stay: bool = False) -> _Item:
        """Return a value, of which ``depth`` brackets were passed, or `BadRow` if too long."""
        if self._at > _CHUNK:
            del self._data[: self._at]
            self._at = 0
        if depth == 0 and (scalar := self._scalar()):
            return scalar
        too_long = BadRow(f"an item longer than {self._limit}")
        at, quoted, dropped = self._at, False, False
        while True:
            mark = (_IN_STRING if quoted else _STRUCTURE).search(self._data, at)
            if mark is None:
                at = max(at, len(self._data))
                if at - self._at > most:
                    if stay:
                        return too_long
                    dropped = True
                    at -= self._forget()
                self._require_more()
                continue
            at, byte = mark.end(), mark[0][0]
            if byte == _BACKSLASH:
                at += 1  # the next character is part of the string, whatever it is
                continue
            quoted = byte == _QUOTE and not quoted
            depth += _DEPTH.get(byte, 0)
            if depth <= 0 and not quoted:
                break
        if stay and at - self._at > most:
            return too_long
        data, self._at = bytes(self._data[self._at : at]), at
        return too_long if dropped or len(data) > most else data

    def _forget(self) -> int:
        n_bytes = len(self._data)
        self._data.clear()
        self._at = 0
        return n_bytes

    def _require_more(self) -> None:
        if not self._fill():
            raise BadRow("the file ends inside this item")

    def _scalar(self) -> bytes:
        """Return a number or a word such as null, and pass it; b"" for any other value."""
        if self.peek() in (b"{", b"[", b'"'):
            return b""
        while (word := _SCALAR.match(self._data, self._at)) and word.end() == len(self._data):
            if len(self._data) - self._at > _CHUNK or not self._fill():
                break
        if word is None:
            raise BadRow("broken JSON: a value is missing here", self.near())
        self._at = word.end()
        return word[0]

    def _fill(self) -> bool:
        """Append the next bytes of the stream to the buffer; return whether there were any."""
        try:
            chunk = self._stream.readline(_CHUNK)
        except DAMAGE as error:
            raise BadRow(damage_reason(error)) from None
        self._data += chunk
        return bool(chunk)
