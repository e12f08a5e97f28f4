"""A file of document ids, one a line."""

from __future__ import annotations

from typing import BinaryIO

from sbert_search.corpus.formats.lines import read_lines
from sbert_search.corpus.formats.rows import BadRow, decode


def read_ids(stream: BinaryIO, shown: str) -> list[str]:
    r"""Read ids, each as it stands, white space included.

    The file is UTF-8. A line ends in ``\n`` or ``\r\n`` and in nothing else, so an id may hold any
    other separator of Unicode. A byte order mark at the start is dropped, an empty line is no id.

    Args:
        stream: Bytes of the file.
        shown: How messages call it.

    Raises:
        CorpusError: A line is no UTF-8 or longer than 64 MiB; the message names it.
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
