"""Expand sources (files, folders, globs) into files of known formats, and read their rows."""

from __future__ import annotations

import codecs
import contextlib
import glob
import gzip
import hashlib
import io
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, cast

from sbert_search.base.progress import note
from sbert_search.errors import CorpusError
from sbert_search.text.fields import TextAs as TextAs
from sbert_search.text.formats.columnar import read_arrow, read_parquet
from sbert_search.text.formats.compressed import RecodedStream, XzStream, ZstdStream
from sbert_search.text.formats.files import (
    CODE,
    KINDS,
    FileName,
    Reading,
    is_read,
    leads_out,
    list_files,
    read_files,
)
from sbert_search.text.formats.json_array import read_json
from sbert_search.text.formats.lines import (
    DAMAGE,
    read_delimited,
    read_jsonl,
    read_lines,
    read_text_lines,
)
from sbert_search.text.formats.office import read_sheets
from sbert_search.text.formats.rows import (
    NO_BUDGET,
    RawRow,
    Reject,
    RowLimit,
    is_reject_list,
    printable,
    warn_of_utf8,
)
from sbert_search.text.formats.spooled import read_spooled

Format = Literal[
    "jsonl", "json", "csv", "tsv", "text", "file", "folder", "parquet", "arrow", "spooled",
    "database", "sheets",
]  # fmt: skip
Root = Path | Literal["common"] | None
"""Folder; the id of a file that is a document is its path relative to this folder.

"common": the deepest folder that contains all sources with such files. None: ids are relative to
the folder that the source names.
"""

FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".xlsx": "sheets",
    ".sqlite": "database",
    ".sqlite3": "database",
    ".duckdb": "database",
    ".db": "database",
}
COMPRESSIONS = (".gz", ".zst", ".xz")

TABLES = tuple(
    suffix + packed
    for suffix in FORMATS
    for packed in ("", *COMPRESSIONS)
    if packed or suffix not in KINDS
)
"""Endings of files whose rows are documents."""
_DOCUMENTS = [suffix for suffix in KINDS if suffix not in (*FORMATS, *CODE.split())]
_KNOWN = (
    f"Known: {' '.join(FORMATS)}, text formats also with {' '.join(COMPRESSIONS)}; "
    f"{' '.join(_DOCUMENTS)} and source code, of which each file (in PDF, each page) is a "
    "document; a folder of such files; a BEIR folder (with corpus.jsonl); '-' for JSON lines on "
    "standard input."
)

# ``**`` as a whole path component.
_TWO_STARS = re.compile(r"(?:^|(?P<slash>/+))\*\*(?:/+\*\*)*(?:/+|$)")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read, or one folder of files."""

    path: Path
    shown: str  # its name in messages and in ``Document.source``
    # For a file of rows: its name in ``<name>#<number>``, the id that a row gets if the file has no
    # id field. For a file that is a document: the id. For a folder of such files: the beginning of
    # their ids.
    name: str
    format: Format
    # The folder to which ``name`` is a relative path. None: there is no root, the file lies outside
    # it, or the file holds rows.
    root: Path | None = None
    only: tuple[str, ...] | None = None  # files to read in a folder, relative to it; None: all
    origin: Path | None = None  # the database from which the rows were copied to this file
    # The rows were copied from `Document` objects: their fields are ``_id``, ``title``, ``text``.
    holds_documents: bool = False
    # The encoding of a file of rows is set only if the file is not UTF-8 (see `as_read`).
    reading: Reading = Reading()  # noqa: RUF009 (frozen)

    @property
    def holds_files(self) -> bool:
        """Whether this is a file that is one document, or a folder of such files."""
        return self.format in ("file", "folder")

    def in_encoding(self, reject: Reject) -> Reject:
        """Name the encoding of the file in the reason, since its rows are read as UTF-8."""
        encoding = self.reading.encoding
        reason = reject.reason.replace("UTF-8", encoding.upper()) if encoding else reject.reason
        return replace(reject, reason=reason)


def expand(
    sources: Sequence[str | Path],
    stdin: SourceFile | None = None,
    *,
    root: Root = "common",
    text_as: TextAs | None = "lines",
) -> list[SourceFile]:
    """List the files of all sources, those of a glob in sorted order.

    A folder with the file ``corpus.jsonl``, such as a dataset of the BEIR benchmark, stands for
    this file. ``stdin`` is the file to read for ``-``; without it, ``-`` is a path.
    """
    found: list[tuple[SourceFile, Path]] = []  # each with the folder that its source names
    for source in sources:
        if stdin is not None and str(source) == "-":
            found.append((stdin, Path()))
        else:
            found += _located(str(source), text_as or "lines")
    if text_as is None and (of_lines := [f.shown for f, _ in found if f.format == "text"]):
        note(f"{of_lines[0]}: each line is a document. With --text-as file, the file is one.")
    if root == "common":
        folders = [os.path.abspath(base) for file, base in found if file.holds_files]
        root = Path(os.path.commonpath(folders)) if folders else None
    files = [_below_root(file, base, root) if file.holds_files else file for file, base in found]
    return _with_unique_names(files, stdin)


def _with_unique_names(files: list[SourceFile], stdin: SourceFile | None) -> list[SourceFile]:
    on_disk = [file for file in files if file is not stdin and not file.holds_files]
    if len({file.name for file in on_disk}) == len(on_disk):
        return files
    # Several files have the same name: use their paths in ids, so that ids stay unique. Standard
    # input keeps its name, since the path of its temporary copy differs in every run.
    root = os.path.commonpath([file.path.absolute().parent for file in on_disk])
    return [
        replace(file, name=printable(file.path.absolute().relative_to(root)))
        if file in on_disk
        else file
        for file in files
    ]


def _located(source: str, text_as: TextAs) -> Iterator[tuple[SourceFile, Path]]:
    """Yield the files of a path or a glob, each with the folder that the source names."""
    if not source:  # such as a shell variable that is not set
        raise CorpusError("A source is empty; name a file, or '.' for the current folder.")
    if os.path.lexists(source) or not glob.has_magic(source):
        file = classify(Path(source), text_as)
        yield file, file.path if file.format == "folder" else file.path.parent
        return
    named = itertools.takewhile(lambda part: not glob.has_magic(part), Path(source).parts)
    folder, unread = Path(*named), list[str]()
    paths = _glob_paths(source)
    for path in paths:
        if len(paths) == 1 or _can_be_read(path):
            yield classify(path, text_as), folder
        else:
            unread.append(printable(path))
    if len(unread) == len(paths):
        raise CorpusError(
            f"{source}: none of the matching files, such as {unread[0]}, can be read. {_KNOWN}"
        )
    if unread:
        note(f"{source}: files of other kinds are not read: {len(unread):,}, such as {unread[0]}.")


def _below_root(file: SourceFile, folder: Path, root: Path | None) -> SourceFile:
    """Name a file by its path relative to the root or, outside the root, relative to ``folder``."""
    inside = None if root is None else path_below(file.path, root)
    name = inside if inside is not None else path_below(file.path, folder) or file.path.name
    return replace(file, name="" if name == "." else name, root=None if inside is None else root)


def path_below(path: Path, folder: Path) -> str | None:
    """Return a path relative to a folder, with ``/``; None if it is outside the folder.

    Links are followed only if the path as written is outside the folder as written.
    """
    for spelled in (os.path.abspath, os.path.realpath):
        if (written := Path(spelled(path))).is_relative_to(spelled(folder)):
            return written.relative_to(spelled(folder)).as_posix()
    return None


def classify(path: Path, text_as: TextAs = "lines") -> SourceFile:
    """Determine the format of a path from its extension, or from the content of a folder."""
    shown = printable(path)
    with named_read_errors(shown):
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _folder(path, shown)
    if not stat.S_ISREG(mode):
        raise CorpusError(f"{shown}: not a regular file. Pipe JSON lines to '-' instead.")
    file_format = _format_of(path, text_as)
    if file_format is None:
        raise CorpusError(f"{shown}: unknown file extension. {_KNOWN}")
    return SourceFile(path, shown, printable(path.name), file_format)


def is_table(path: Path) -> bool:
    """Whether a path is a file of rows, or would be one by its name."""
    return not path.is_dir() and _format_of(path) not in ("file", None)


def _format_of(path: Path, text_as: TextAs = "lines") -> Format | None:
    plain = path.name.lower()
    compression = next((suffix for suffix in COMPRESSIONS if plain.endswith(suffix)), "")
    suffix = Path(plain.removesuffix(compression)).suffix
    if not compression and suffix in KINDS and (suffix != ".txt" or text_as == "file"):
        return "file"
    file_format = FORMATS.get(suffix)
    binary = file_format in ("parquet", "arrow", "database", "sheets")
    return None if compression and binary else file_format


def _can_be_read(path: Path) -> bool:
    if not path.is_dir():
        return _format_of(path) is not None
    listing = list_files(path, TABLES)
    return is_read(path.name) and bool(listing.names or listing.tables)


def read_rows(
    file: SourceFile, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield one item for every row of a file, in bounded memory; rows above the limit are rejected.

    The first ``skip`` rows are skipped as cheaply as the format allows.
    """
    match file.format:
        case "file" | "folder":
            yield from read_files(files_of(file), skip=skip, limit=limit)
        case "database":
            raise CorpusError(f"{file.shown}: a database cannot be read for this; export its rows.")
        case "spooled":
            yield from read_spooled(file.path, file.shown, skip=skip, limit=limit)
        case "sheets":
            yield from read_sheets(file.path, file.shown, skip=skip, limit=limit)
        case "parquet" | "arrow":
            read = read_parquet if file.format == "parquet" else read_arrow
            # The readers would report a file that cannot be opened as damaged, so open it first.
            with open_bytes(file.path, file.shown):
                yield from read(file.path, file.shown, skip=skip, limit=limit)
        case _:
            with open_bytes(file.path, file.shown, limit=limit) as stream:
                if encoding := file.reading.encoding:
                    stream = io.BufferedReader(RecodedStream(stream, encoding), 1 << 16)
                yield from _STREAM_READERS[file.format](stream, file.shown, skip=skip, limit=limit)


_STREAM_READERS: Mapping[Format, Callable[..., Iterator[RawRow | Reject]]] = {
    "jsonl": read_jsonl,
    "json": read_json,
    "text": read_text_lines,
    "csv": partial(read_delimited, delimiter=None),
    "tsv": partial(read_delimited, delimiter="\t"),
}


def as_read(file: SourceFile, reading: Reading, limit: RowLimit = NO_BUDGET) -> SourceFile:
    """Return the file, to be read in a way; a file of rows in UTF-8 is not read in an encoding."""
    if (encoding := reading.encoding) and file.format in _STREAM_READERS:
        if _is_utf8(file, limit):
            reading = replace(reading, encoding=None)
        else:
            with open_bytes(file.path, file.shown, limit=limit) as stream:
                warn_of_utf8(read_lines(stream, limit), encoding, file.shown)
    return replace(file, reading=reading)


def _is_utf8(file: SourceFile, limit: RowLimit) -> bool:
    """Whether the part of a text file that can be read is UTF-8 without NUL characters."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_bytes(file.path, file.shown, limit=limit) as stream, contextlib.suppress(*DAMAGE):
        try:
            while data := stream.read(1 << 16):
                if "\0" in decoder.decode(data):  # each second byte of English UTF-16 is NUL
                    return False
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def field_names(file: SourceFile, limit: RowLimit = NO_BUDGET) -> list[str] | None:
    """Return the fields of the first 100 valid rows of a file, or None if it has no valid row."""
    valid = (row for row in read_rows(file, limit=limit) if isinstance(row, RawRow))
    names = [tuple(row.values) for row in itertools.islice(valid, 100)]
    return list(dict.fromkeys(itertools.chain.from_iterable(names))) if names else None


def require_field_names(file: SourceFile, kind: str, limit: RowLimit = NO_BUDGET) -> list[str]:
    """Return `field_names`; without a valid row, raise the first reject or "holds no ``kind``"."""
    names = field_names(file, limit=limit)
    if names is None:
        for row in read_rows(file, limit=limit):
            if isinstance(row, Reject):
                raise row.error()
        raise CorpusError(f"{file.shown}: holds no {kind}.")
    return names


@contextlib.contextmanager
def named_read_errors(shown: str) -> Iterator[None]:
    """Turn an `OSError` in the context into an error that names the file."""
    try:
        yield
    except OSError as error:
        raise CorpusError(f"{shown}: cannot be read: {error.strerror}.") from error


@contextlib.contextmanager
def open_bytes(path: Path, shown: str = "", *, limit: RowLimit = NO_BUDGET) -> Iterator[BinaryIO]:
    """Open a regular file to read its bytes; decompress it if its extension names a compression."""
    shown = shown or printable(path)
    with named_read_errors(shown):
        if not stat.S_ISREG(path.stat().st_mode):
            raise CorpusError(f"{shown}: not a regular file.")
        raw = path.open("rb")
    with raw:
        match path.suffix.lower():
            case ".gz":
                # A BufferedReader around the file would read large blocks. A read that meets damage
                # fails as a whole, so the lines of the block before the damage would be lost.
                yield cast(BinaryIO, gzip.open(raw))  # noqa: SIM115 (raw is closed)
            case ".xz":
                stream = XzStream(raw, shown, limit.decompressor_bytes)
                yield io.BufferedReader(stream, 1 << 16)
            case ".zst":
                yield io.BufferedReader(ZstdStream(raw), 1 << 16)
            case _:
                yield raw


def content_sha256(files: Sequence[SourceFile]) -> str:
    """Return the SHA-256 of the content of files, in hexadecimal.

    For one file it is the hash of its bytes as stored. For several files, or a folder, it is the
    hash of one line ``<sha256>  <name>`` for each file, as sha256sum prints it.
    """
    digests = [(_sha256(path), name) for file in files for path, name in members(file)]
    if len(files) == 1 and files[0].format != "folder":
        return digests[0][0]
    listing = "".join(f"{digest}  {name}\n" for digest, name in digests)
    return hashlib.sha256(listing.encode()).hexdigest()


def _sha256(path: Path | None) -> str:
    # In a folder whose files are documents, an entry may be a link that is broken or leads out of
    # the folder, no regular file in spite of a name such as x.txt, or a file without permission to
    # read it. The reader rejects such an entry.
    if path is None or not path.is_file():
        return "none"
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except PermissionError:
        return "none"


def members(file: SourceFile) -> list[tuple[Path | None, str]]:
    """List the path and the name of each file of a source.

    The path is None for a link in a folder to a file outside it, which is never read.
    """
    if not file.holds_files:
        return [(file.path, file.name)]
    files = files_of(file)
    return [(None if named.outside else named.path, printable(named.doc_id)) for named in files]


def files_of(file: SourceFile) -> Iterator[FileName]:
    """Yield the files of a source whose files are documents, with their ids and paths."""
    if file.format == "file":
        if file.reading.leaves_out(file.name):
            return
        column = file.name if file.root else Path(os.path.abspath(file.path)).as_posix()
        yield FileName(file.path, file.name, column, file.shown, reading=file.reading)
        return
    for name in list_files(file.path).names if file.only is None else file.only:
        path = file.path / name
        doc_id = f"{file.name}/{name}" if file.name else name
        if file.reading.leaves_out(doc_id):
            continue
        column = doc_id if file.root else Path(os.path.abspath(path)).as_posix()
        shown = f"{file.shown}/{printable(name)}"
        yield FileName(path, doc_id, column, shown, leads_out(file.path, name), file.reading)


def _glob_paths(source: str) -> list[Path]:
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

    Otherwise `glob` would descend in circles at a link to a parent folder, and each further link
    would double the number of paths. ``**`` also skips the folders that a folder source skips.
    """
    deep = _TWO_STARS.search(pattern)
    if deep is None:
        return set(glob.glob(pattern))
    # "" or None: start in the working directory.
    before = pattern[: deep.start()] or deep["slash"]
    after = pattern[deep.end() :] or "*"
    found: set[str] = set()
    for root in glob.glob(before) if before else [os.curdir]:
        for here, folders, _ in os.walk(root):
            folders[:] = filter(is_read, folders)
            base = here if before else here.removeprefix(os.curdir).lstrip(os.sep)
            found |= _glob(os.path.join(glob.escape(base), after))
    if after.endswith("*"):  # leave out folders, since the walk finds the files in them
        return {path for path in found if not os.path.isdir(path)}
    return found


def _folder(path: Path, shown: str) -> SourceFile:
    entries = sorted(os.listdir(path))
    for name in ("corpus.jsonl", *(f"corpus.jsonl{suffix}" for suffix in COMPRESSIONS)):
        if name in entries:
            return classify(path / name)
    listing = list_files(path, TABLES)
    if not listing.names:
        if not listing.tables:
            raise CorpusError(f"{shown}: the folder has no file that can be read. {_KNOWN}")
        table = Path(listing.tables[0])
        pattern = printable(path / table.with_name(f"*{table.suffix}"))
        raise CorpusError(
            f"{shown}: the folder has {table.suffix} files, whose rows are documents. Name these "
            f"files instead of the folder, such as '{pattern}'."
        )
    if left_out := listing.left_out("name them too"):
        note(f"{shown}: not read: {left_out}.")
    return SourceFile(path, shown, printable(path.name), "folder")
