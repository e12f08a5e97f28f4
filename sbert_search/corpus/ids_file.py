"""Read a file of document ids, one per line."""

from __future__ import annotations

from typing import BinaryIO

from sbert_search.corpus.formats.lines import read_lines
from sbert_search.corpus.formats.rows import BadRow, decode


def read_ids(stream: BinaryIO, shown: str) -> list[str]:
    r"""Read ids unchanged, including white space.

    The file is UTF-8. Only ``\n`` and ``\r\n`` end a line, so an id may contain the other line
    separators of Unicode. A byte order mark at the start and empty lines are dropped.

    Args:
        stream: Bytes of the file.
        shown: Name of the file in messages.

    Raises:
        CorpusError: A line cannot be read, is not UTF-8 or is longer than 64 MiB; the message has
            the number of the line.
    """
    ids = []
    for number, data, problem in read_lines(stream):
        try:
            if problem:
                raise BadRow(problem)
            ids.append(decode(data))
        except BadRow as bad:
            raise bad.at(f"{shown}:{number}").error() from None
    return [doc_id for doc_id in ids if doc_id]
