"""Read Word documents (.docx) and the rows of Excel workbooks (.xlsx)."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from pathlib import Path

from sbert_search.base.memory import mib
from sbert_search.errors import CorpusError, install
from sbert_search.text.formats.lines import header_of
from sbert_search.text.formats.rows import NO_BUDGET, BadRow, RawRow, Reject, RowLimit

_INSTALL = install("office")


def read_docx(data: bytes, limit: RowLimit = NO_BUDGET) -> tuple[str, str]:
    """Return the title of a Word document, or "", and its text; headings as in Markdown.

    The cells of a table's row are joined by "|". Headers, footers and comments are not read.
    """
    try:
        import docx
        from docx.table import Table
    except ImportError:
        raise BadRow(f"a .docx file needs python-docx: {_INSTALL}") from None
    try:
        limit.check(_unpacked_bytes(io.BytesIO(data)))
        document = docx.Document(io.BytesIO(data))
        title, parts = document.core_properties.title or "", []
        for block in document.iter_inner_content():
            if isinstance(block, Table):
                parts += [" | ".join(cell.text for cell in row.cells) for row in block.rows]
                continue
            style = (block.style.name if block.style else "") or ""
            if style == "Title" and not title:
                title = block.text
            level = style.removeprefix("Heading ")
            parts.append(f"{'#' * int(level)} {block.text}" if level.isdigit() else block.text)
    except BadRow:
        raise
    except Exception as error:  # of many types
        raise BadRow("the .docx file cannot be read", str(error) or type(error).__name__) from None
    text = "\n\n".join(part.strip() for part in parts if part.strip())
    return title.replace("\0", ""), text.replace("\0", "")


def read_sheets(
    path: Path, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield one row per row of each sheet of a workbook; the first filled row is its header.

    A whole number is an int, a date a time at midnight, an empty cell None, and a time of day or a
    duration a text.
    """
    try:
        from python_calamine import CalamineWorkbook
    except ImportError:
        raise CorpusError(f"{shown}: a .xlsx file needs python-calamine: {_INSTALL}.") from None
    try:
        size = _unpacked_bytes(path)
        if size > limit.decompressor_bytes:
            most = mib(limit.decompressor_bytes)
            raise CorpusError(
                f"{shown}: the workbook has {mib(size)} unpacked, and {most} are allowed; save its "
                "sheets as CSV in UTF-8."
            )
        workbook = CalamineWorkbook.from_path(str(path))
        sheets = [(name, workbook.get_sheet_by_name(name)) for name in workbook.sheet_names]
    except CorpusError:
        raise
    except Exception as error:  # of several types
        raise CorpusError(f"{shown}: the workbook cannot be read: {error}.") from error
    numbers = itertools.count(1)
    rows = itertools.chain.from_iterable(
        _rows(f"{shown}:{name}", sheet.iter_rows(), numbers) for name, sheet in sheets
    )
    return itertools.islice(rows, skip, None)


def _rows(
    place: str, rows: Iterator[Sequence[object]], numbers: Iterator[int]
) -> Iterator[RawRow | Reject]:
    header: list[str] | None = None
    for at, cells in enumerate(rows, 1):
        if all(cell == "" for cell in cells):
            continue
        source = f"{place}:row {at}"
        if header is None:
            header = header_of([str(cell) for cell in cells], source)
            continue
        values = dict(zip(header, map(_value, cells), strict=False))
        yield RawRow(source, next(numbers), values)


def _value(cell: object) -> object:
    if cell == "":
        return None
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)  # a workbook has no integers
    if isinstance(cell, date) and not isinstance(cell, datetime):
        return datetime.combine(cell, time())  # a time at midnight is read as a date
    return cell if isinstance(cell, str | bool | int | float | datetime) else str(cell)


def _unpacked_bytes(file: Path | io.BytesIO) -> int:
    """Return the size of the files in an archive as it states them; unpacking checks them."""
    with zipfile.ZipFile(file) as archive:
        return sum(info.file_size for info in archive.infolist())
