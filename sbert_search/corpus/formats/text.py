"""Read plain text: one document per line, or a folder with one document per file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sbert_search.corpus.formats.limits import NO_BUDGET, RowLimit
from sbert_search.corpus.formats.lines import BOM, read_filled_lines
from sbert_search.corpus.formats.rows import BadRow, RawRow, Reject, decode, printable
from sbert_search.errors import CorpusError
from sbert_search.runtime.memory import mib

FILE_SUFFIXES = (".txt", ".md")


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


def read_text_folder(
    folder: Path, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield a row for each .txt and .md file: ``id`` is its path in the folder, ``text`` its text.

    Raises:
        CorpusError: A folder cannot be listed.
    """
    for number, name in enumerate(text_files(folder)[skip:], start=skip + 1):
        source = f"{shown}/{printable(name)}:1"
        try:
            if leads_out(folder, name):
                raise BadRow("a link to a file outside the folder; copy the file into it")
            yield RawRow(source, number, {"id": name, "text": _read_file(folder / name, limit)})
        except BadRow as bad:
            yield bad.at(source)
        except OSError as error:
            yield Reject(source, f"cannot be read: {error.strerror}")


def text_files(folder: Path) -> list[str]:
    """List the .txt and .md files in a folder and its subfolders, sorted; skip hidden names.

    Returns:
        Paths relative to the folder, separated by ``/``.

    Raises:
        CorpusError: A folder cannot be listed.
    """

    def fail(error: OSError) -> None:
        shown = printable(error.filename)
        raise CorpusError(f"{shown}: cannot be listed: {error.strerror}.") from error

    names = []
    for here, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(here).relative_to(folder)
        for name in files:
            if name.lower().endswith(FILE_SUFFIXES) and not name.startswith("."):
                names.append((inside / name).as_posix())
    return sorted(names)


def leads_out(folder: Path, name: str) -> bool:
    """Whether a file in a folder is a symbolic link to a file outside the folder."""
    path = folder / name
    return path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(
        os.path.realpath(folder)
    )


def _read_file(path: Path, limit: RowLimit) -> str:
    if not path.is_file():
        raise BadRow("not a regular file")
    if (size := path.stat().st_size) > limit.n_bytes:
        raise BadRow(f"the file has {mib(size)}, and one document may have {limit}")
    data = path.read_bytes().removeprefix(BOM)
    limit.check_text(data)
    return decode(data)
