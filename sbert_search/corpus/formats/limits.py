"""Limits on the size of a row, checked before the row is parsed or converted."""

from __future__ import annotations

from dataclasses import dataclass

from sbert_search.base.memory import MAX_ROW_BYTES, mib, shares
from sbert_search.corpus.formats.rows import BadRow

MAX_DECOMPRESSOR_BYTES = 512 << 20  # used if there is no memory budget

_MAX_MEMORY_PER_BYTE = 1 << 10  # a row's memory is at most this many times its size in the file
# Upper bounds of the bytes that Python allocates for one JSON object, list, key and scalar. Each
# includes the reference in the enclosing list or object, but no elements or characters.
_OBJECT_BYTES, _LIST_BYTES, _KEY_BYTES, _SCALAR_BYTES = 216, 120, 128, 96


@dataclass(frozen=True, slots=True)
class RowLimit:
    """The maximum size of one row.

    Attributes:
        n_bytes: Maximum bytes of a row in the file and, if there is a budget, in memory.
        budget: Memory budget of the process in bytes, from which ``n_bytes`` is computed. None: no
            budget; only the bytes in the file are limited.
    """

    n_bytes: int = MAX_ROW_BYTES
    budget: int | None = None

    @classmethod
    def within(cls, memory_bytes: int | None) -> RowLimit:
        """Return the limit of a row for a memory budget in bytes; None: no budget."""
        return cls(shares(memory_bytes).row, memory_bytes)

    @property
    def block_bytes(self) -> int:
        """Maximum bytes of the rows that are converted to Python values at a time."""
        return shares(self.budget).batch

    @property
    def decompressor_bytes(self) -> int:
        """Maximum bytes of memory for decompressing a file, in addition to the row."""
        return MAX_DECOMPRESSOR_BYTES if self.budget is None else self.budget // 6

    def check(self, n_bytes: int) -> None:
        """Reject a row of ``n_bytes`` bytes if this is above the limit.

        Raises:
            BadRow: The row is above the limit. The reason has the size, the limit and, if it can be
                raised, the option for this.
        """
        if n_bytes > self.n_bytes:
            of_memory = "" if self.budget is None else " of memory"
            raise BadRow(f"the row takes {mib(n_bytes)}{of_memory}, and one row may take {self}")

    def check_json(self, data: bytes) -> None:
        """Raise `BadRow` for a JSON object whose values may need more memory than the limit.

        Without a budget nothing is checked.
        """
        if self._may_be_too_much(data):
            self.check(json_bytes(data))

    def check_text(self, data: bytes) -> None:
        """Raise `BadRow` for a text that may need more memory than the limit.

        Without a budget nothing is checked.
        """
        if self._may_be_too_much(data):
            self.check(_char_bytes(data) * len(data))

    def check_cells(self, data: bytes, delimiter: str, before: int) -> int:
        """Return an upper bound of the memory of one line of a CSV record, and check the record.

        Without a budget nothing is checked, and the result is 0.

        Args:
            data: The line.
            delimiter: Separator of the cells.
            before: Sum of the results for the earlier lines of the record.

        Raises:
            BadRow: The record up to this line may need more memory than the limit.
        """
        if self.budget is None:
            return 0
        n_bytes = 4 * len(data) + _SCALAR_BYTES * (data.count(delimiter.encode()) + 1)
        self.check(before + n_bytes)
        return n_bytes

    def _may_be_too_much(self, data: bytes) -> bool:
        return self.budget is not None and len(data) > self.n_bytes // _MAX_MEMORY_PER_BYTE

    def __str__(self) -> str:
        """Format the limit; if it comes from a budget, name the option --memory too."""
        if self.budget is None:
            return mib(self.n_bytes)
        more = "" if self.n_bytes >= MAX_ROW_BYTES else "; raise --memory"
        return f"{mib(self.n_bytes)} with --memory {mib(self.budget)}{more}"


NO_BUDGET = RowLimit()


def json_bytes(data: bytes) -> int:
    """Return an upper bound of the memory of the values of a JSON object, in bytes.

    A list or an object of n elements has n - 1 commas. So the number of strings, numbers and
    literals in ``data``, apart from keys, is at most one more than the number of commas. Each key
    has a colon.
    """
    return (
        _char_bytes(data, b"\\u" in data) * len(data)
        + _OBJECT_BYTES * data.count(b"{")
        + _LIST_BYTES * data.count(b"[")
        + _KEY_BYTES * data.count(b":")
        + _SCALAR_BYTES * (data.count(b",") + 1)
    )


def _char_bytes(data: bytes, escaped: bool = False) -> int:
    """Return an upper bound of the bytes per character of a text that is decoded from ``data``.

    Python stores every character of a string in 4 bytes if one character needs 4 bytes.

    Args:
        data: Bytes of the text.
        escaped: Whether JSON escapes in the text may stand for characters that are not ASCII.
    """
    return 1 if data.isascii() and not escaped else 4
