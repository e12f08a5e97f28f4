"""The output of all format readers: raw rows, limits on their size, and rejected rows.

A reader yields one item per input row, so counting items counts rows. Only after damage in a file,
one reject may stand for all rows that follow. `CorpusReader` decides whether a bad row stops the
work or is skipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from sbert_search.base import files, memory
from sbert_search.base.cache import typed_lru_cache
from sbert_search.base.memory import MAX_ROW_BYTES, mib
from sbert_search.base.options import if_offered
from sbert_search.base.progress import warn
from sbert_search.errors import CorpusError

BLOCK_ROWS = 1024  # rows, or vectors, that are read, converted or written together
_EXCERPT_CHARS = 80

BOM = b"\xef\xbb\xbf"  # the byte order mark of UTF-8

_Text = TypeVar("_Text", str, bytes)
_Item = TypeVar("_Item")
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Reject:
    """One input row that cannot be used."""

    source: str  # position of the row, such as ``file:17`` (line) or ``file:row group 3:row 17``
    reason: str
    value: str = ""  # a short excerpt of the bad content

    @property
    def mark(self) -> str:
        """The fingerprint of a file, by which later syncs know that it was reported; "": a row."""
        last = self.value.rpartition(" ")[2]
        return last if re.fullmatch("[0-9a-f]{16}", last) else ""

    def error(self, remedy: str = "Fix it.") -> CorpusError:
        """Return an error whose message has the position, the reason, the value and a remedy."""
        if "invalid UTF-8" in self.reason:
            named = if_offered("--encoding", "name its encoding, such as --encoding cp1252, or ")
            convert = f"{named}convert the file, such as by iconv -f cp1252 -t utf-8 FILE."
            plain = remedy == "Fix it."
            remedy = f"Fix it, or {convert}" if plain else f"To read it, {convert} {remedy}"
        return CorpusError(f"{self}. {remedy}")

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}{f' ({self.value})' if self.value else ''}"


class Cell(str):
    """A text whose type is guessed, like a CSV cell, in a row whose other values have types."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row of a file, with values that are not checked yet."""

    source: str  # as in `Reject`
    number: int  # from 1: of its line in text formats, of its page in PDF, else of the row
    values: Mapping[str, object]  # None means the same as a missing field
    typed: bool = True  # False: the format has no types (CSV, TSV), so every value is text
    # For a whole file or a page of a PDF file: a hash computed from the bytes of the file, by which
    # an index recognises that the file was changed. None: the file holds rows.
    fingerprint: int | None = None
    scanned: tuple[int, ...] = ()  # pages of the file of the row that are images without text
    cut: tuple[int, ...] = ()  # pages of the file without their part of a list of references
    # The names of the classes in columns whose values are numbers of classes (`class_names`).
    classes: Mapping[str, Sequence[str]] | None = None

    @property
    def text(self) -> str:
        """The field ``text``, which a row of plain text has."""
        return str(self.values["text"])

    def named(self, columns: Iterable[str], no_class: str | None = None) -> Mapping[str, object]:
        """Return the values, in ``columns`` class names for numbers, and ``no_class`` for -1."""
        known = self.classes or {}
        named = {n: _named(self.values.get(n), known[n], no_class) for n in columns if n in known}
        return {**self.values, **named} if named else self.values


def _named(value: object, names: Sequence[str], no_class: str | None) -> object:
    if isinstance(value, list):
        return [_named(item, names, no_class) for item in value]
    if isinstance(value, int) and value < len(names):
        return names[value] if value >= 0 else no_class
    return value


class BadRow(Exception):  # noqa: N818 (internal: callers turn it into a Reject)
    """A row cannot be used. `at` makes a `Reject` of it once the position is known."""

    def __init__(self, reason: str, value: object = None) -> None:
        self.reason = reason
        self.value = "" if value is None else excerpt(value)
        super().__init__(reason)

    def at(self, source: str) -> Reject:
        """Return a `Reject` for the row at the position ``source``."""
        return Reject(source, self.reason, self.value)


def raw_rows(
    items: Iterable[tuple[int, _Item | BadRow]],
    place: str,
    parse: Callable[[_Item], Mapping[str, object]],
    skip: int = 0,
    *,
    before: int = 0,
    typed: bool = True,
    classes: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[RawRow | Reject]:
    """Make a row of each numbered item of a file, after the first ``skip``, which are not parsed.

    ``place`` and the number are the position of a row; its own number counts also the rows
    ``before`` the items. A `BadRow`, also if ``parse`` raises it, becomes a `Reject`.
    """
    for number, item in islice(items, skip, None):
        source = f"{place}{number}"
        try:
            if isinstance(item, BadRow):
                raise item
            yield RawRow(source, before + number, parse(item), typed, classes=classes)
        except BadRow as bad:
            yield bad.at(source)


def map_rows(rows: Iterable[RawRow | Reject], make: Callable[[RawRow], _Record]) -> list[_Record]:
    """Return what ``make`` returns for each row; the first bad row is raised as an error."""
    made = []
    for row in rows:
        if isinstance(row, Reject):
            raise row.error()
        try:
            made.append(make(row))
        except BadRow as bad:
            raise bad.at(row.source).error() from None
    return made


def repeated_name(names: Sequence[str]) -> str | None:
    """Return the first name that another column has too; None if all names differ."""
    return next((name for n, name in enumerate(names) if name in names[:n]), None)


def excerpt(value: object) -> str:
    """Return the `repr` of a value, cut to `_EXCERPT_CHARS` characters."""
    if isinstance(value, (str, bytes)):
        value = value[: _EXCERPT_CHARS + 1]
    shown = repr(value)
    return shown if len(shown) <= _EXCERPT_CHARS else shown[: _EXCERPT_CHARS - 3] + "..."


def as_one_text(values: Sequence[object]) -> str:
    """Return an example of one text for messages on a list: its letters joined, or its texts."""
    texts = [str(value) for value in values if value is not None]
    return excerpt(("" if all(len(text) == 1 for text in texts) else " ").join(texts))


def printable(path: str | os.PathLike[str]) -> str:
    """Return a path as valid Unicode; undecodable bytes become backslash escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def check_text(value: str, name: str) -> str:
    """Return a text; raise `BadRow` if it has a NUL or a lone surrogate.

    A NUL would end a C string. The readers of CSV, TSV, Parquet and Arrow decode invalid UTF-8
    bytes to lone surrogates.
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
    """Decode UTF-8; the reason of the `BadRow` has the position of the first bad byte, from 1."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "; is it UTF-16?" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
        reason = f"invalid UTF-8 at byte {error.start + 1}{hint}"
        raise BadRow(reason, _around(data, error.start)) from None


def warn_of_utf8(lines: Iterable[tuple[int, bytes | BadRow]], encoding: str, shown: str) -> None:
    """Warn of numbered lines in UTF-8, in a file that is read in an encoding of single bytes."""
    if len(b"\xc3\xbc".decode(encoding, "replace")) == 1:
        return
    found = _utf8_lines(lines, encoding)
    for number, text in islice(found, 1):
        part = _around(text, next(at for at, letter in enumerate(text) if not letter.isascii()))
        read = part.encode().decode(encoding, "replace")
        such = f" ({n + 1:,} such lines)" if (n := sum(1 for _ in found)) else ""
        _warn_once(
            f"{shown}:{number}: {read!r} is {part!r} in UTF-8{such}, but the file is read as "
            f"{encoding}. Write the whole file in one encoding."
        )


def _utf8_lines(
    lines: Iterable[tuple[int, bytes | BadRow]], encoding: str
) -> Iterator[tuple[int, str]]:
    """Yield the lines in UTF-8, but not those that are likely to be so by chance.

    By chance a line has few such characters, and none that the encoding has: Её in cp1251 is Ÿ.
    """
    for number, line in lines:
        if isinstance(line, bytes) and not line.isascii():
            with contextlib.suppress(UnicodeDecodeError):
                text = line.decode()
                if len(line) > len(text) + 2 or not text.encode(encoding, "ignore").isascii():
                    yield number, text


@typed_lru_cache(256)
def _warn_once(message: str) -> None:
    warn(message)


def _around(value: _Text, position: int) -> _Text:
    return value[max(0, position - 20) : position + 20]


# Limits if there is no memory budget.
_MAX_DECOMPRESSOR_BYTES = 512 << 20
_MAX_PAGE_BYTES = 256 << 20  # of one page of a Parquet file

_MAX_MEMORY_PER_BYTE = 1 << 10  # a row's memory is at most this many times its size in the file
# Upper bounds of the bytes that Python allocates for one JSON object, list, key and scalar. Each
# includes the reference in the enclosing list or object, but no elements or characters.
_OBJECT_BYTES, _LIST_BYTES, _KEY_BYTES, _SCALAR_BYTES = 216, 120, 128, 96


@dataclass(frozen=True, slots=True)
class RowLimit:
    """What a file may make this process hold: the size of a row, of pages and of a decompressor.

    Each reader asks it before it makes values of bytes.
    """

    n_bytes: int = MAX_ROW_BYTES  # in the file and, if there is a budget, in memory
    budget: int | None = None  # memory budget of the process, from which ``n_bytes`` is computed

    @classmethod
    def within(cls) -> RowLimit:
        """Return the limit of a row for the memory limit of this process."""
        return cls(memory.shares().row, memory.limit())

    @property
    def block_bytes(self) -> int:
        """Maximum bytes of the rows that are converted to Python values at a time."""
        return memory.MAX_BATCH_BYTES if self.budget is None else memory.batch_bytes(self.budget)

    @property
    def decompressor_bytes(self) -> int:
        """Maximum bytes of memory for decompressing a file, in addition to the row."""
        return _MAX_DECOMPRESSOR_BYTES if self.budget is None else self.budget // 6

    def check(self, n_bytes: int) -> None:
        """Raise `BadRow` for a row of ``n_bytes`` bytes if this is above the limit."""
        if n_bytes > self.n_bytes:
            of_memory = "" if self.budget is None else " of memory"
            raise BadRow(f"the row takes {mib(n_bytes)}{of_memory}, and one row may take {self}")

    def check_json(self, data: bytes) -> None:
        """With a budget, raise `BadRow` for a JSON object whose values may need more memory."""
        if self._may_be_too_much(data):
            self.check(json_bytes(data))

    def check_text(self, data: bytes) -> None:
        """With a budget, raise `BadRow` for a text that may need more memory than the limit."""
        if self._may_be_too_much(data):
            self.check(_char_bytes(data) * len(data))

    def check_cells(self, data: bytes, delimiter: str, before: int) -> int:
        """Return an upper bound of the memory of one line of a CSV record; 0 without a budget.

        With ``before``, the sum for the earlier lines of the record, it must be within the limit.
        """
        if self.budget is None:
            return 0
        n_bytes = 4 * len(data) + _SCALAR_BYTES * (data.count(delimiter.encode()) + 1)
        self.check(before + n_bytes)
        return n_bytes

    def check_pages(self, total: int, largest: int) -> None:
        """Reject a Parquet row group whose pages need too much memory, before decompressing them.

        ``total`` may be an eighth of the budget; without one, only the ``largest`` page is limited.
        """
        needed, allowed, more = largest, _MAX_PAGE_BYTES, ";"
        if self.budget is not None:
            needed, allowed = total, self.budget // 8
            more = f" with --memory {mib(self.budget)}; allow more, or"
        if needed > allowed:
            raise BadRow(
                f"the pages of its row group take {mib(needed)} of memory at a time, and "
                f"{mib(allowed)} are allowed{more} write the file with smaller pages and row groups"
            )

    def _may_be_too_much(self, data: bytes) -> bool:
        return self.budget is not None and len(data) > self.n_bytes // _MAX_MEMORY_PER_BYTE

    def __str__(self) -> str:
        if self.budget is None:
            return mib(self.n_bytes)
        more = "" if self.n_bytes >= MAX_ROW_BYTES else "; raise --memory"
        return f"{mib(self.n_bytes)} with --memory {mib(self.budget)}{more}"


NO_BUDGET = RowLimit()


def json_bytes(data: bytes) -> int:
    """Return an upper bound of the memory of the values of a JSON object, in bytes.

    The number of scalars in ``data``, apart from keys, is at most one more than that of commas.
    """
    return (
        _char_bytes(data, b"\\u" in data) * len(data)
        + _OBJECT_BYTES * data.count(b"{")
        + _LIST_BYTES * data.count(b"[")
        + _KEY_BYTES * data.count(b":")
        + _SCALAR_BYTES * (data.count(b",") + 1)
    )


def _char_bytes(data: bytes, escaped: bool = False) -> int:
    """Return an upper bound of the bytes per character; ``escaped``: there may be JSON escapes."""
    # Python stores every character of a string in 4 bytes if one character needs 4 bytes.
    return 1 if data.isascii() and not escaped else 4


_NAME = re.compile(r".*\.rejects(\.old)?\.jsonl", re.DOTALL)
_FIELDS = {field.name for field in dataclasses.fields(Reject)}


class RejectLog:
    """JSON lines with the source, reason and value of every rejected row, in input order.

    The file ``<folder>.rejects.jsonl`` lists the rejected rows of the last finished run; it is
    absent if no row was rejected. During a run the new list grows under a temporary name, since the
    run may read the previous list as a source. A previous list that a user edited is kept as
    ``<folder>.rejects.old.jsonl``, unless the run read it as a source and rejected no row. A
    resumed run keeps the first ``keep`` lines of its list.
    """

    def __init__(self, folder: Path, keep: int = 0) -> None:
        if folder.name in ("", ".."):  # such as ".", which has no name
            folder = folder.resolve()
        self.path = reject_list(folder)
        self._old = folder.with_name(f"{folder.name}.rejects.old.jsonl")
        self._growing = folder.with_name(f"{folder.name}.rejects.jsonl.partial")
        if keep and self.path.exists() and not self._growing.exists():
            # The run was interrupted after `finish` had renamed its list.
            files.disk.replace(self.path, self._growing)
        self._log = files.LineLog(self._growing, keep)

    def append(self, rejects: Sequence[Reject]) -> None:
        """Append rejected rows and sync them to disk.

        The caller commits the number of rejected rows after this call, so that a resumed run finds
        at least this number of lines.
        """
        self._log.append([json.dumps(dataclasses.asdict(reject)) for reject in rejects])

    def finish(self, *, was_read: bool) -> None:
        """Replace the previous list by the new one; remove it if no row was rejected.

        ``was_read``: the previous list was a source of the run.
        """
        rejected = self._growing.exists()
        if self.path.exists() and (rejected or not was_read) and _is_changed(self.path):
            files.disk.replace(self.path, self._old)
            warn(f"{self.path} was changed by hand; it is kept as {self._old}.")
        if rejected:
            files.disk.replace(self._growing, self.path)
        elif self.path.exists():
            files.disk.unlink(self.path)


def reject_list(folder: Path) -> Path:
    """Return the path of the list of rejected rows of the last finished run."""
    return folder.with_name(f"{folder.name}.rejects.jsonl")


def listed_rejects(folder: Path) -> Iterator[Reject]:
    """Yield the rejected rows of the last finished run, without lines that a user changed."""
    if not (path := reject_list(folder)).is_file():
        return
    with path.open("rb") as lines:
        for line in filter(_is_record, lines):
            yield Reject(**json.loads(line))


def is_reject_list(path: Path) -> bool:
    """Whether a file has the name of a list of rejected rows."""
    return _NAME.fullmatch(path.name) is not None


def _is_changed(path: Path) -> bool:
    """Whether a list contains a line that `RejectLog` cannot have written."""
    with path.open("rb") as lines:
        return not all(map(_is_record, lines))


def _is_record(line: bytes) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.keys() == _FIELDS
