"""Expand sources (files, folders, globs) into files of known formats, and read their rows."""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import io
import itertools
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal, cast

import pyarrow as pa

from sbert_search.corpus.formats.columnar import read_arrow, read_parquet
from sbert_search.corpus.formats.delimited import read_delimited
from sbert_search.corpus.formats.jsonl import read_jsonl
from sbert_search.corpus.formats.limits import NO_BUDGET, RowLimit
from sbert_search.corpus.formats.rows import RawRow, Reject, printable
from sbert_search.corpus.formats.spooled import read_spooled
from sbert_search.corpus.formats.text import (
    leads_out,
    read_text_folder,
    read_text_lines,
    text_files,
)
from sbert_search.corpus.formats.xz import XzStream
from sbert_search.corpus.rejects import is_reject_list
from sbert_search.errors import CorpusError
from sbert_search.runtime.progress import note

Format = Literal["jsonl", "csv", "tsv", "text", "folder", "parquet", "arrow", "spooled"]

FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}
COMPRESSIONS = (".gz", ".zst", ".xz")

_TWO_STARS = re.compile(r"(?:^|(?P<slash>/+))\*\*(?:/+\*\*)*(?:/+|$)")  # a whole path component


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read, or one folder of text files.

    Attributes:
        path: Path of the file or folder.
        shown: Its name in messages and in ``Document.source``.
        name: Its name in the ids ``<name>#<line>``, which rows get if the file has no id field.
        format: Its format.
    """

    path: Path
    shown: str
    name: str
    format: Format


def expand(sources: Sequence[str | Path], stdin: SourceFile | None = None) -> list[SourceFile]:
    """List the files of all sources, those of a glob in sorted order.

    A BEIR folder counts as its corpus file.

    Args:
        sources: Paths, globs, or ``-``.
        stdin: The file to read for ``-``.

    Raises:
        CorpusError: A source is absent, of unknown format or not a regular file, or a glob or
            folder contains no readable file.
    """
    files: list[SourceFile] = []
    for source in sources:
        if stdin is not None and str(source) == "-":
            files.append(stdin)
        else:
            files += map(classify, _paths(str(source)))
    on_disk = [file for file in files if file is not stdin]
    if len({file.name for file in on_disk}) == len(on_disk):
        return files
    # Two files have the same name: use their paths in ids, so that ids stay unique. The temporary
    # path of standard input would be another one in every run.
    root = os.path.commonpath([file.path.absolute().parent for file in on_disk])
    return [
        file
        if file is stdin
        else replace(file, name=printable(file.path.absolute().relative_to(root)))
        for file in files
    ]


def classify(path: Path) -> SourceFile:
    """Determine the format of a path from its extension, or from the content of a folder.

    Raises:
        CorpusError: In the same cases as `expand`.
    """
    shown = printable(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _folder(path, shown)
    except OSError as error:
        raise CorpusError(f"{shown}: cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(mode):
        raise CorpusError(f"{shown}: not a regular file. Pipe JSON lines to '-' instead.")
    plain = path.name.lower()
    compression = next((suffix for suffix in COMPRESSIONS if plain.endswith(suffix)), "")
    file_format = FORMATS.get(Path(plain.removesuffix(compression)).suffix)
    if file_format is None or (compression and file_format in ("parquet", "arrow")):
        raise CorpusError(
            f"{shown}: unknown file extension. Known: {' '.join(FORMATS)}, the text "
            f"formats also with {' '.join(COMPRESSIONS)}; a folder of .txt and .md files; a BEIR "
            "folder; '-' for JSON lines on standard input."
        )
    return SourceFile(path, shown, printable(path.name), file_format)


def read_rows(
    file: SourceFile, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield one item for every row of a file, in bounded memory.

    Args:
        file: The file.
        skip: Number of rows to skip, as cheaply as the format allows.
        limit: Maximum size of a row; larger rows are rejected.

    Raises:
        CorpusError: The file cannot be opened, or has no usable header.
    """
    match file.format:
        case "folder":
            yield from read_text_folder(file.path, file.shown, skip=skip, limit=limit)
        case "spooled":
            yield from read_spooled(file.path, file.shown, skip=skip, limit=limit)
        case "parquet" | "arrow":
            read = read_parquet if file.format == "parquet" else read_arrow
            # The readers would report a file that cannot be opened as damaged: open it first.
            with open_bytes(file.path, file.shown):
                yield from read(file.path, file.shown, skip=skip, limit=limit)
        case _:
            with open_bytes(file.path, file.shown, limit=limit) as stream:
                yield from _read_stream(file, stream, skip, limit)


def field_names(
    file: SourceFile, *, n_rows: int = 100, limit: RowLimit = NO_BUDGET
) -> list[str] | None:
    """Return the field names of the first valid rows of a file, or None if it has no valid row.

    Raises:
        CorpusError: In the same cases as `read_rows`.
    """
    valid = (row for row in read_rows(file, limit=limit) if isinstance(row, RawRow))
    names = [tuple(row.values) for row in itertools.islice(valid, n_rows)]
    return list(dict.fromkeys(itertools.chain.from_iterable(names))) if names else None


@contextlib.contextmanager
def open_bytes(path: Path, shown: str = "", *, limit: RowLimit = NO_BUDGET) -> Iterator[BinaryIO]:
    """Open a regular file, decompressing it according to its extension.

    Raises:
        CorpusError: The file cannot be opened, or is a FIFO, a device or a folder.
    """
    shown = shown or printable(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CorpusError(f"{shown}: not a regular file.")
        raw = path.open("rb")
    except OSError as error:
        raise CorpusError(f"{shown}: cannot be read: {error.strerror}.") from error
    with raw:
        match path.suffix.lower():
            case ".gz":
                # Not in a BufferedReader, which reads large blocks: a read that meets damage fails
                # as a whole, so the lines of the block that precede the damage would be lost.
                yield cast(BinaryIO, gzip.open(raw))  # noqa: SIM115 (raw is closed)
            case ".xz":
                stream = XzStream(raw, shown, limit.decompressor_bytes)
                yield io.BufferedReader(stream, 1 << 16)
            case ".zst":
                yield io.BufferedReader(pa.CompressedInputStream(raw, "zstd"), 1 << 16)
            case _:
                yield raw


def content_sha256(files: Sequence[SourceFile]) -> str:
    """Return the SHA-256 of the content of files, in hexadecimal.

    For one file it is the hash of its bytes, without decompressing them. For several files, or a
    folder of text files, it is the hash of the lines ``<sha256>  <name>``, as sha256sum prints
    them.
    """
    digests = [(_sha256(path), name) for file in files for path, name in members(file)]
    if len(files) == 1 and files[0].format != "folder":
        return digests[0][0]
    listing = "".join(f"{digest}  {name}\n" for digest, name in digests)
    return hashlib.sha256(listing.encode()).hexdigest()


def _sha256(path: Path | None) -> str:
    # In a folder of text files: a link that leads out or is broken, or a name such as x.txt that is
    # no regular file. The reader rejects its row.
    if path is None or not path.is_file():
        return "none"
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def members(file: SourceFile) -> list[tuple[Path | None, str]]:
    """List the files of a source, as path and name.

    The path is None for a link in a text folder to a file outside it, which is never read.
    """
    if file.format != "folder":
        return [(file.path, file.name)]
    names = text_files(file.path)
    return [
        (None if leads_out(file.path, name) else file.path / name, printable(name))
        for name in names
    ]


def _read_stream(
    file: SourceFile, stream: BinaryIO, skip: int, limit: RowLimit
) -> Iterator[RawRow | Reject]:
    match file.format:
        case "jsonl":
            return read_jsonl(stream, file.shown, skip=skip, limit=limit)
        case "text":
            return read_text_lines(stream, file.shown, skip=skip, limit=limit)
        case _:
            delimiter = "\t" if file.format == "tsv" else None
            return read_delimited(stream, file.shown, delimiter=delimiter, skip=skip, limit=limit)


def _paths(source: str) -> list[Path]:
    if os.path.lexists(source) or not glob.has_magic(source):
        return [Path(source)]
    paths = [Path(path) for path in sorted(_glob(source))]
    if not paths:
        raise CorpusError(f"{source}: no file matches this pattern.")
    skipped = [path for path in paths if is_reject_list(path)]
    if len(skipped) == len(paths):
        return paths
    for path in skipped:
        note(f"{printable(path)}: skipped, a list of rejected rows. To read it, name the file.")
    return [path for path in paths if path not in skipped]


def _glob(pattern: str) -> set[str]:
    """Return the matches of `glob.glob` with ``recursive=True``, but ``**`` follows no links.

    A link to a parent folder would make `glob` descend in circles, and each further link would
    double the number of paths.
    """
    deep = _TWO_STARS.search(pattern)
    if deep is None:
        return set(glob.glob(pattern))
    before = pattern[: deep.start()] or deep["slash"]  # None: start in the working directory
    after = pattern[deep.end() :] or "*"
    found: set[str] = set()
    for root in glob.glob(before) if before else [os.curdir]:
        for here, folders, _ in os.walk(root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            base = here if before else here.removeprefix(os.curdir).lstrip(os.sep)
            found |= _glob(os.path.join(glob.escape(base), after))
    return found


def _folder(path: Path, shown: str) -> SourceFile:
    entries = sorted(os.listdir(path))
    for name in ("corpus.jsonl", *(f"corpus.jsonl{suffix}" for suffix in COMPRESSIONS)):
        if name in entries:
            return classify(path / name)
    others = [Path(name) for name in entries if not is_reject_list(Path(name))]
    tables = sorted({other.suffix.lower() for other in others} & FORMATS.keys() - {".txt"})
    if tables:
        kind = tables[0]
        raise CorpusError(f"{shown}: a folder with {kind} files; name them: '{shown}/*{kind}'.")
    if not text_files(path):
        raise CorpusError(f"{shown}: the folder has neither corpus.jsonl nor .txt or .md files.")
    return SourceFile(path, shown, printable(path.name), "folder")
