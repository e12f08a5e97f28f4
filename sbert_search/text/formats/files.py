"""Read files whose content is text: Markdown, HTML, source code, notebooks, PDF and the like.

Each file is one document, except that each page of a PDF file is a document.
"""

from __future__ import annotations

import codecs
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import xxhash

from sbert_search.base.memory import mib
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.records import PAGE_MARK
from sbert_search.text.fields import HtmlPart, References
from sbert_search.text.formats import markup
from sbert_search.text.formats.markup import Pdf
from sbert_search.text.formats.office import read_docx
from sbert_search.text.formats.rows import (
    BOM,
    NO_BUDGET,
    BadRow,
    RawRow,
    Reject,
    RowLimit,
    decode,
    printable,
    warn_of_utf8,
)

Kind = Literal["text", "markdown", "rst", "html", "notebook", "pdf", "docx"]

CODE = (
    ".c .cc .clj .cpp .cs .cxx .dart .erl .ex .exs .go .h .hpp .hs .java .jl .js .jsx .kt .lua .m "
    ".mjs .ml .php .pl .pm .proto .ps1 .py .pyi .r .rb .rs .scala .sh .sql .swift .ts .tsx .zig"
)

KINDS: Mapping[str, Kind] = {
    ".txt": "text",
    ".adoc": "text",
    ".org": "text",
    ".tex": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".rst": "rst",
    ".html": "html",
    ".htm": "html",
    ".ipynb": "notebook",
    ".pdf": "pdf",
    ".docx": "docx",
    **dict.fromkeys(CODE.split(), "text"),
}
"""The kind of a file by its extension. Source code is of the kind "text": the file is the text."""

# Metadata columns that a PDF file gives; those that the file does not state are missing.
PDF_COLUMNS = frozenset(
    ("path", "modified", "page", "page_label", "author", "created", "subject", "keywords")
)
_UNREAD_FOLDERS = frozenset(("__pycache__", "node_modules"))  # not read, like hidden folders
# A folder with all files of one of these sets is not read: it is a virtual environment of Python,
# an index of this package or a sharded index.
_UNREAD_FILES = ({"pyvenv.cfg"}, {"LOCK", "MANIFEST.json"}, {"LOCK", "shards.json"})

_PDF_SHARE = 8  # a PDF file may have this many times the bytes of a document: each page is one
_EXTRACTION = 9  # increase it when a change of the code changes the title or text of a file
# Columns that `read_files` fills itself; fields of front matter with these names are ignored.
_OWN_COLUMNS = ("id", "text", "path", "modified", "page")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CHARSET = re.compile(rb"""<meta\b[^>]*?charset\s*=\s*["']?\s*([\w-]{1,30})""", re.IGNORECASE)
_CHARSETS = re.compile(
    r"utf-?8|(us-)?ascii|latin-?1|iso-?8859-?\d+|(windows|cp)-?125\d|koi8-[ru]|macintosh|gbk|gb2312"
    r"|gb18030|big5|euc-(jp|kr)|shift[_-]?jis|utf-?16(le|be)?"
)
# Browsers decode these encodings as supersets (WHATWG Encoding Standard, section 4.2).
_EXTENSIONS = {
    **dict.fromkeys(("latin1", "iso88591", "ascii", "usascii"), "cp1252"),
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    "shiftjis": "cp932",
    "euckr": "cp949",
}


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a folder and its subfolders that `list_files` does not skip.

    Paths are relative to the folder and have ``/`` between their parts.
    """

    names: list[str]  # of the files that are documents, sorted; only these are read
    tables: list[str]  # of the files whose rows are documents, such as ``.csv``, sorted
    others: Counter[str] = field(default_factory=Counter)  # number of other files by extension
    unlisted: list[str] = field(default_factory=list)  # subfolders that cannot be listed

    def left_out(self, remedy: str) -> str:
        """Describe the files that are not read; ``remedy`` says how to read tables."""
        parts = []
        if self.tables:
            shown = ", ".join(printable(name) for name in self.tables[:3])
            more = f" and {len(self.tables) - 3:,} more" if len(self.tables) > 3 else ""
            parts.append(f"tables are not read with a folder; {remedy}: {shown}{more}")
        if self.others:
            kinds = ", ".join(f"{suffix} {n:,}" for suffix, n in self.others.most_common(5))
            more = ", ..." if len(self.others) > 5 else ""
            parts.append(f"{self.others.total():,} files of other kinds ({kinds}{more})")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Reading:
    """How the bytes of a file become text, and what is left out; see `ReadSettings`."""

    encoding: str | None = None
    html: HtmlPart = "all"
    references: References = "keep"
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        encoding = "utf-8" if self.encoding is None else self.encoding
        try:
            "".encode(encoding)  # refuses codecs that are not of texts, too
        except (LookupError, UnicodeError, ValueError):
            raise ConfigError(
                f"encoding is {self.encoding!r}; name one that Python knows, such as cp1252."
            ) from None

    def leaves_out(self, path: str) -> bool:
        """Whether a pattern of ``exclude`` matches a file, or a folder above it."""
        parts = path.split("/")
        above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        return any(
            fnmatchcase(each, pattern.rstrip("/"))
            for pattern in self.exclude
            for each in (above if "/" in pattern.rstrip("/") else parts)
        )


@dataclass(frozen=True, slots=True)
class FileName:
    """A file to read, and its names."""

    path: Path
    doc_id: str  # ids of PDF pages begin with it
    column: str  # the value of the document's metadata column ``path``
    shown: str  # name of the file in messages
    outside: bool = False  # a link in a folder to a file outside the folder, which is not read
    reading: Reading = Reading()


def list_files(
    folder: Path,
    tables: Sequence[str] = (),
    *,
    on_unlisted: Callable[[Path, OSError], None] | None = None,
) -> Listing:
    """List the files of a folder and its subfolders; ``tables`` are endings such as ``.csv.gz``.

    Hidden files and folders, `_UNREAD_FOLDERS`, virtual environments of Python, indexes of this
    package and links to folders are skipped. A folder that cannot be listed is an error, unless
    ``on_unlisted`` is called with it.
    """
    listing = Listing([], [])

    def fail(error: OSError) -> None:
        if on_unlisted is None:
            shown = printable(error.filename)
            raise CorpusError(f"{shown}: cannot be listed: {error.strerror}.") from error
        listing.unlisted.append(Path(error.filename).relative_to(folder).as_posix())
        on_unlisted(Path(error.filename), error)

    for here, folders, files in os.walk(folder, onerror=fail):
        if any(of_program <= set(files) for of_program in _UNREAD_FILES):
            folders.clear()
            continue
        folders[:] = filter(is_read, folders)
        inside = Path(here).relative_to(folder)
        for name in files:
            suffix = Path(name).suffix.lower()
            if name.startswith("."):
                continue
            if suffix in KINDS:
                listing.names.append((inside / name).as_posix())
            elif name.lower().endswith(tuple(tables)):
                listing.tables.append((inside / name).as_posix())
            else:
                listing.others[suffix or "without extension"] += 1
    listing.names.sort()
    listing.tables.sort()
    return listing


def leads_out(folder: Path, name: str) -> bool:
    """Whether a file in a folder is a symbolic link to a file outside the folder."""
    path = folder / name
    return path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(
        os.path.realpath(folder)
    )


def read_files(
    files: Iterator[FileName], *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield a row for each document, after the first ``skip`` rows and rejects.

    The fields of a row are ``id``, ``title``, ``text``, ``path`` and ``modified``, and ``page`` for
    each page with text of a PDF file, with ``page_label``, ``author`` and ``created`` if the file
    has them. Front matter of Markdown adds its fields. The title is found in the content; otherwise
    it is the name of the file. A file without title and text is skipped, but a PDF file without
    text is rejected.
    """
    rows = itertools.chain.from_iterable(_read_file(file, limit) for file in files)
    return itertools.islice(rows, skip, None)


def fingerprint(data: bytes, file: FileName | None = None) -> int:
    """Hash the bytes of a file, seeded with the version of the code that extracts its text.

    Options of ``file`` change the hash if they change how these bytes are read.
    """
    own = xxhash.xxh3_64_intdigest(data, seed=_EXTRACTION)
    part = file and {"html": file.reading.html, "pdf": file.reading.references}.get(_kind(file))
    if part in ("main", "drop"):
        own ^= xxhash.xxh3_64_intdigest(part.encode())
    is_text = file and _kind(file) in ("text", "markdown", "rst", "html")
    if file and is_text and file.reading.encoding and not _is_utf8(data):
        own ^= xxhash.xxh3_64_intdigest(file.reading.encoding.encode())
    return own


def fingerprint_before_last(of_file: int) -> int:
    """Return the fingerprint for all pages of a PDF file except the last one.

    Only the last page has ``of_file``. Pages are committed in order, so an index with it has all.
    """
    return of_file ^ 1


def read_bytes(file: FileName, limit: RowLimit = NO_BUDGET) -> bytes:
    """Read a whole file; `BadRow` if it is no regular file of its folder or is too large."""
    if file.outside:
        raise BadRow("a link to a file outside the folder; copy the file into it")
    try:
        if not file.path.is_file():
            raise BadRow("not a regular file")
        size, is_pdf = file.path.stat().st_size, file.path.suffix.lower() == ".pdf"
        if size > limit.n_bytes * (_PDF_SHARE if is_pdf else 1):
            most = f"a PDF file may have {_PDF_SHARE} times" if is_pdf else "one document may have"
            raise BadRow(f"the file has {mib(size)}, and {most} {limit}")
        return file.path.read_bytes()
    except OSError as error:
        raise BadRow(f"cannot be read: {error.strerror}") from None


def is_read(folder: str) -> bool:
    """Whether a folder of this name is read as part of another folder."""
    return not folder.startswith(".") and folder not in _UNREAD_FOLDERS


def _read_file(file: FileName, limit: RowLimit) -> Iterator[RawRow | Reject]:
    source = f"{file.shown}:1"
    try:
        modified = _modified(file.path)
        data = read_bytes(file, limit)
        if not data.strip():
            return
        kind = _kind(file)
        of_file = {"path": file.column, "modified": modified}
        if kind == "pdf":
            yield from _read_pages(file, data, of_file)
            return
        title, text, more = _parts(kind, data, limit, file)
    except BadRow as bad:
        yield bad.at(source)
        return
    title = markup.clean_title(title)
    if title or text.strip():
        title = title or printable(file.path.name)
        values = {**more, "id": file.doc_id, "title": title, "text": text, **of_file}
        yield RawRow(source, 1, values, fingerprint=fingerprint(data, file))


def _kind(file: FileName) -> Kind:
    return KINDS[file.path.suffix.lower()]


def _read_pages(
    file: FileName, data: bytes, of_file: Mapping[str, object]
) -> Iterator[RawRow | Reject]:
    """Yield a row for each page with text. The last one has the `fingerprint` of the file.

    The other pages, and all pages before a damaged page, have the `fingerprint_before_last`.
    """
    whole, pdf = fingerprint(data, file), Pdf(data, file.reading.references)
    title = pdf.title or printable(file.path.name)
    row: RawRow | None = None
    try:
        for number, text in pdf.pages():
            if row:
                yield row
            doc_id, shown = f"{file.doc_id}{PAGE_MARK}{number}", f"{file.shown}:page {number}"
            values = {"id": doc_id, "title": title, "text": text, "page": number}
            if pdf.labels and pdf.labels[number - 1]:
                values["page_label"] = pdf.labels[number - 1]
            row = RawRow(
                shown,
                number,
                {**values, **pdf.columns, **of_file},
                fingerprint=fingerprint_before_last(whole),
            )
    except BadRow:
        if row:
            yield replace(row, scanned=tuple(pdf.scanned), cut=tuple(pdf.cut))
        raise
    if row:
        yield replace(row, fingerprint=whole, scanned=tuple(pdf.scanned), cut=tuple(pdf.cut))


def _parts(
    kind: Kind, data: bytes, limit: RowLimit, file: FileName
) -> tuple[str, str, Mapping[str, object]]:
    """Return the title, the text and more columns of a file."""
    if kind == "notebook":
        return *markup.notebook(data.removeprefix(BOM), limit), {}
    if kind == "docx":
        return *read_docx(data, limit), {}
    limit.check_text(data)
    if kind == "html":
        return *markup.html_text(_decode_html(data, file), file.reading.html), {}
    text = _decode(data, file)
    if kind == "markdown":
        title, text, fields = markup.markdown(text)
        return title, text, {name: fields[name] for name in fields if name not in _OWN_COLUMNS}
    return markup.rst_title(text) if kind == "rst" else "", text, {}


def _decode(data: bytes, file: FileName | None = None) -> str:
    """Decode a text: as UTF-16 with a byte order mark, else as UTF-8, else as ``file`` says."""
    encoding = file.reading.encoding if file else None
    if data.startswith(_UTF16):
        encoding = "utf-16"
    elif encoding is None or _is_utf8(data):
        return decode(data.removeprefix(BOM))
    elif file:
        warn_of_utf8(enumerate(data.split(b"\n"), 1), encoding, file.shown)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        raise BadRow(f"invalid {encoding.upper()}") from None


def _is_utf8(data: bytes) -> bool:
    try:
        return "\0" not in data.decode("utf-8")  # each second byte of English UTF-16 is NUL
    except UnicodeDecodeError:
        return False


def _decode_html(data: bytes, file: FileName) -> str:
    """Decode an HTML page as UTF-8 or, if it is not, in the encoding that its ``<meta>`` names.

    If the page names none, or a wrong one, it is read in ``encoding``.
    """
    try:
        return _decode(data)
    except BadRow:
        named = _CHARSET.search(data, 0, 1024)
        charset = named[1].decode().lower() if named else ""
        if not _CHARSETS.fullmatch(charset):
            return _decode(data, file)
        try:
            return data.decode(_EXTENSIONS.get(re.sub("[-_]", "", charset), charset))
        except (LookupError, UnicodeDecodeError):
            if file.reading.encoding is not None:
                return _decode(data, file)
            raise BadRow(f"invalid {charset}, which the page names as its encoding") from None


def _modified(path: Path) -> datetime | None:
    """Return when a file was last changed; None if this is unknown or not in years 1 to 9999."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime_ns / 1e9, UTC)
    except (OSError, OverflowError, ValueError):
        return None
