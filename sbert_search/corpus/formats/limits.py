"""How large a row of a source may be, judged by its bytes before anything is made of them."""

from __future__ import annotations

from dataclasses import dataclass

from sbert_search.corpus.formats.rows import BadRow
from sbert_search.runtime.memory import MAX_ROW_BYTES, mib, shares

MAX_DECOMPRESSOR_BYTES = 512 << 20  # where there is no budget

_SURELY_SMALL = 1 << 10  # bytes of memory that one byte of a row never takes
_OBJECT_BYTES, _LIST_BYTES, _CELL_BYTES = 200, 72, 64  # of JSON's {}, [] and what a comma divides


@dataclass(frozen=True, slots=True)
class RowLimit:
    """What one row may take.

    Attributes:
        n_bytes: As it stands in the file and as it is held in memory.
        budget: Of the whole process, which the limit follows from; None: there is none, and only
            the bytes in the file are limited.
    """

    n_bytes: int = MAX_ROW_BYTES
    budget: int | None = None

    @classmethod
    def within(cls, memory_bytes: int | None) -> RowLimit:
        """Return the limit that a budget for the whole process allows."""
        return cls(shares(memory_bytes).row, memory_bytes)

    @property
    def block_bytes(self) -> int:
        """What rows that are read together may take."""
        return shares(self.budget).batch

    @property
    def decompressor_bytes(self) -> int:
        """What decompressing a file may take, beside the row that comes out."""
        return MAX_DECOMPRESSOR_BYTES if self.budget is None else self.budget // 6

    def check(self, n_bytes: int, what: str = "the row takes") -> None:
        """Refuse a row by the memory that it will take.

        Raises:
            BadRow: With its size, the limit, and the option that raises it.
        """
        if n_bytes > self.n_bytes:
            raise BadRow(f"{what} {mib(n_bytes)} of memory, and one row may take {self}")

    def check_json(self, data: bytes) -> None:
        """Refuse a line of JSON by the most that its values can take; raises as `check`."""
        if self._may_be_too_much(data):
            wide = _char_bytes(data, b"\\u" in data) * len(data)
            nested = _OBJECT_BYTES * data.count(b"{") + _LIST_BYTES * data.count(b"[")
            self.check(wide + nested + _CELL_BYTES * data.count(b","))

    def check_text(self, data: bytes) -> None:
        """Refuse a line of text by the most that it can take; raises as `check`."""
        if self._may_be_too_much(data):
            self.check(_char_bytes(data) * len(data))

    def check_cells(self, data: bytes, delimiter: str, before: int) -> int:
        """Return the most that a line of cells can take, beside the lines before it in its record.

        Raises:
            BadRow: As `check`, for all of them together.
        """
        if self.budget is None:
            return 0
        n_bytes = 4 * len(data) + _CELL_BYTES * data.count(delimiter.encode())
        self.check(before + n_bytes)
        return n_bytes

    def _may_be_too_much(self, data: bytes) -> bool:
        return self.budget is not None and len(data) > self.n_bytes // _SURELY_SMALL

    def __str__(self) -> str:
        """Name the limit, and how to raise it."""
        if self.budget is None:
            return mib(self.n_bytes)
        more = "" if self.n_bytes >= MAX_ROW_BYTES else "; allow more"
        return f"{mib(self.n_bytes)} with --memory {mib(self.budget)}{more}"


NO_BUDGET = RowLimit()


def _char_bytes(data: bytes, escaped: bool = False) -> int:
    """Return the bytes that a character of this text can take: one other than ASCII widens all."""
    return 1 if data.isascii() and not escaped else 4
