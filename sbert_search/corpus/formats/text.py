"""Read plain text: one document per line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from sbert_search.corpus.formats.limits import NO_BUDGET, RowLimit
from sbert_search.corpus.formats.lines import read_filled_lines
from sbert_search.corpus.formats.rows import BadRow, RawRow, Reject, decode


def read_text_lines(
    stream: BinaryIO, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield one row per line, with the field ``text``; blank lines are skipped."""
    for number, data, problem in read_filled_lines(stream, skip=skip, limit=limit):
        source = f"{shown}:{number}"
        try:
            if problem:
                raise BadRow(problem)
            limit.check_text(data)
            yield RawRow(source, number, {"text": decode(data)})
        except BadRow as bad:
            yield bad.at(source)
