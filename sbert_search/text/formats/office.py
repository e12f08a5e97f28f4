"""Read Word documents (.docx) and the rows of Excel workbooks (.xlsx)."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING

from sbert_search.base.memory import mib
from sbert_search.errors import CorpusError, install
from sbert_search.text.formats.lines import header_of
from sbert_search.text.formats.rows import NO_BUDGET, BadRow, RawRow, Reject, RowLimit

if TYPE_CHECKING:
    from docx.oxml.xmlchemy import BaseOxmlElement as Element

_INSTALL = install("office")

_OFFICE = "{http://schemas.openxmlformats.org"
_WORD, _MATH = f"{_OFFICE}/wordprocessingml/2006/main}}", f"{_OFFICE}/officeDocument/2006/math}}"
_CHOICES = f"{_OFFICE}/markup-compatibility/2006}}AlternateContent"
_GONE = [_WORD + name for name in ("del", "moveFrom", "cellDel", "rt")]  # rt: how to read a word
_WRAPPERS = "ins moveTo sdt sdtContent smartTag customXml fldSimple hyperlink dir bdo ruby rubyBase"


def read_docx(data: bytes, limit: RowLimit = NO_BUDGET) -> tuple[str, str]:
    """Return the title of a Word document, or "", and its text; headings as in Markdown.

    The text is the one seen when tracked changes are accepted. The cells of a table's row are
    joined by "|". Headers, footers, notes and comments are not read.
    """
    try:
        import docx
        from docx.table import Table
    except ImportError:
        raise BadRow(f"a .docx file needs python-docx: {_INSTALL}") from None
    try:
        limit.check(_unpacked_bytes(io.BytesIO(data)))
        document = docx.Document(io.BytesIO(data))
        title, parts = document.core_properties.title or "", list[str]()
        _show_all(document.element.body)
        for block in document.iter_inner_content():
            if isinstance(block, Table):
                parts += _table_rows(block._tbl)
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


def _table_rows(table: Element) -> Iterator[str]:
    above: dict[int, str] = {}  # by column; a cell over several rows is read in each of them
    for row in table.tr_lst:
        cells, column = dict[int, str](), row.grid_before
        for cell in row.tc_lst:
            merged = cell.vMerge == "continue"
            cells[column] = above.get(column, "") if merged else "\n".join(_cell_lines(cell))
            column += cell.grid_span
        above = cells
        if any(cells.values()):
            yield " | ".join(cells.values())


def _cell_lines(cell: Element) -> Iterator[str]:
    for block in cell.inner_content_elements:
        lines = _table_rows(block) if block.tag == f"{_WORD}tbl" else [block.text]
        yield from filter(None, lines)


def _show_all(body: Element) -> None:
    """Accept tracked changes, and move the text that python-docx would not read to where it does.

    It reads paragraphs and tables of the body and of cells, and runs of paragraphs, and nothing
    inside other elements: content controls, fields, text boxes, formulas.
    """
    joined = _remove_deleted(body)
    for choices in [*body.iter(_CHOICES)]:  # the same text for new and for old versions of Word
        with_text = (one for one in choices if [*one.iter(f"{_WORD}t", f"{_MATH}t")])
        _unwrap(choices, next(with_text, ()))
    for wrapper in [*body.iter(f"{_MATH}oMathPara", *(_WORD + n for n in _WRAPPERS.split()))]:
        _unwrap(wrapper, wrapper)
    for formula in [*body.iter(f"{_MATH}oMath")]:
        signs = formula.iter(f"{_MATH}t", f"{_MATH}den")
        run, text = (formula.makeelement(_WORD + name) for name in ("r", "t"))
        text.text = "".join("/" if sign.tag == f"{_MATH}den" else sign.text or "" for sign in signs)
        run.append(text)
        _unwrap(formula, [run])
    for run in [*body.iter(f"{_WORD}r")]:
        if run.getparent().tag == run.tag:  # it was inside a ruby
            _unwrap(run, run)
    for paragraph in reversed(joined):
        after = next(paragraph.itersiblings(f"{_WORD}p", f"{_WORD}tbl"), None)
        if after is not None and after.tag == paragraph.tag:
            at = int(after.pPr is not None)
            after[at:at] = [own for own in paragraph if own is not paragraph.pPr]
            paragraph.getparent().remove(paragraph)
    last: dict[Element, Element] = {}  # by the paragraph that anchors text boxes: what follows it
    for box in [*body.iter(f"{_WORD}txbxContent")]:
        anchor = next(box.iterancestors(f"{_WORD}p"))
        for block in [*box]:
            last.get(anchor, anchor).addnext(block)
            last[anchor] = block


def _remove_deleted(body: Element) -> list[Element]:
    """Remove deleted text; return the paragraphs that a deleted paragraph end joins to the next."""
    joined = []
    for mark in [*body.iter(*_GONE)]:
        properties = mark.getparent()
        match properties.tag.removeprefix(_WORD):
            case "rPr" if properties.getparent().tag == f"{_WORD}pPr":
                joined.append(properties.getparent().getparent())
            case "trPr" | "tcPr":
                deleted = properties.getparent()
                deleted.getparent().remove(deleted)
            case _:
                properties.remove(mark)
    return joined


def _unwrap(element: Element, shown: Iterable[Element]) -> None:
    """Replace an element by other ones."""
    for one in [*shown]:
        element.addprevious(one)
    element.getparent().remove(element)


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
            names = (_value(cell) if isinstance(cell, float) else cell for cell in cells)
            header = header_of([*map(str, names)], source)
            continue
        values = dict(zip(header, map(_value, cells), strict=False))
        yield RawRow(source, next(numbers), values)


def _value(cell: object) -> object:
    if cell == "":
        return None
    if isinstance(cell, float) and cell.is_integer() and abs(cell) <= 2**53:
        return int(cell)  # a workbook has no integers, and floats hold no larger ones exactly
    if isinstance(cell, date) and not isinstance(cell, datetime):
        return datetime.combine(cell, time())  # a time at midnight is read as a date
    return cell if isinstance(cell, str | bool | int | float | datetime) else str(cell)


def _unpacked_bytes(file: Path | io.BytesIO) -> int:
    """Return the size of the files in an archive as it states them; unpacking checks them."""
    with zipfile.ZipFile(file) as archive:
        return sum(info.file_size for info in archive.infolist())
