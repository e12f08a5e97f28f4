"""Find the title and the visible text of Markdown, reStructuredText, HTML, notebooks and PDF.

Every function takes time and memory proportional to its input, even if the input is broken or
deeply nested.
"""

from __future__ import annotations

import contextlib
import html
import io
import logging
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import chain

from sbert_search.errors import install
from sbert_search.text.fields import HtmlPart
from sbert_search.text.formats.lines import parse_object
from sbert_search.text.formats.rows import NO_BUDGET, BadRow, RowLimit

MAX_TITLE_CHARS = 300
_MAX_HEADING_CHARS = 1000  # a longer line is no heading
_MAX_FRONT_MATTER = 1 << 16  # characters

_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?=[ \t]*[\w-]+[ \t]*[:=])")
_BLOCK_SCALAR = re.compile(r"[|>][+-]?\d?[+-]?")  # in YAML: the value is in the lines below
_TITLE_KEY = re.compile(r"title[ \t]*[:=][ \t]*(.*)", re.IGNORECASE)
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"(?=[ \t]*(?:#|$))')
_SINGLE_QUOTED = re.compile(r"'((?:[^']|'')*)'(?=[ \t]*(?:#|$))")
_ESCAPED = re.compile(r"""\\(["\\])""")
_COMMENT = re.compile(r"[ \t]#")
_FENCE = re.compile(r"`{3,}|~{3,}")
_REGIONS = re.compile(r"<(main|article)[\s>]")
_H1 = re.compile(r"<h1\b[^<>]*>([^<>]*)", re.IGNORECASE)
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])?")
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1*")

_NAME = re.compile(r"[a-zA-Z][^\s/>]*")
_QUOTE_OR_END = re.compile(r"[\"'>]")
# Elements whose content is left out.
_HIDDEN = frozenset(
    ("iframe", "noembed", "noframes", "noscript", "script", "style", "svg", "template")
)
_PARAGRAPHS = (
    "article aside blockquote body figure footer form h1 h2 h3 h4 h5 h6 header hr main nav ol p "
    "pre section table ul"
)
_MENUS = frozenset(("aside", "footer", "nav"))
_LINES = "address br caption dd div dl dt fieldset figcaption li option tr"
_GAPS = {  # by element: what separates its content from the text around it
    **dict.fromkeys(_PARAGRAPHS.split(), "\n\n"),
    **dict.fromkeys(_LINES.split(), "\n"),
    "td": " ",
    "th": " ",
}


def markdown(text: str) -> tuple[str, str]:
    """Return the title of a Markdown document, and its text without the front matter.

    The title is that of the front matter (YAML or TOML); if there is none, the first heading or "".
    """
    title, start = _front_matter(text)
    body = text[start:]
    return title or _markdown_heading(body), body


def rst_title(text: str) -> str:
    """Return the first section title of a reStructuredText document, or ""."""
    before = ""
    for line in _lines(text):
        if _is_adornment(line) and 0 < len(before) <= len(line) and not _is_adornment(before):
            return before.strip()
        before = line
    return ""


def notebook(data: bytes, limit: RowLimit = NO_BUDGET) -> tuple[str, str]:
    """Return the title of a Jupyter notebook, and the text of its cells without their outputs.

    The title is the first heading in a Markdown cell, or "". Other JSON raises `BadRow`.
    """
    content = parse_object(data, limit)
    sheets = content.get("worksheets")  # before version 4 of the format
    cells = content.get("cells")
    if cells is None and isinstance(sheets, list):
        of_sheets = [sheet.get("cells") or [] for sheet in sheets if isinstance(sheet, dict)]
        if all(isinstance(own, list) for own in of_sheets):
            cells = list(chain.from_iterable(of_sheets))
    if not isinstance(cells, list):
        raise BadRow("not a Jupyter notebook: it has no list of cells")
    title, texts = "", []
    for cell in cells:
        if not isinstance(cell, dict):
            raise BadRow("not a Jupyter notebook: a cell is not an object", cell)
        text = _cell_text(cell.get("source", cell.get("input", "")))
        if not title and cell.get("cell_type") == "markdown":
            title = _markdown_heading(text)
        if text.strip():
            texts.append(text)
    return title, "\n\n".join(texts)


def _cell_text(source: object) -> str:
    lines = source if isinstance(source, list) else [source]
    texts = [line for line in lines if isinstance(line, str)]
    if len(texts) < len(lines):
        raise BadRow("not a Jupyter notebook: the source of a cell is not text", source)
    return "".join(texts)


def html_text(page: str, part: HtmlPart = "all") -> tuple[str, str]:
    """Return the title of an HTML page, and its visible text, with line ends between blocks.

    The title is the first ``<title>`` or else ``<h1>`` that is not blank, or "". Comments and the
    elements of `_HIDDEN` are left out. `ReadSettings` describes the part ``main``. If it is empty,
    or if one of its elements is not closed, the text is that of the whole page.
    """
    reader = _HtmlReader()
    if part == "main":
        found = set(_REGIONS.findall(page.lower()))
        within = next((name for name in ("main", "article") if name in found), "")
        reader = _HtmlReader(within, _MENUS if within else _MENUS | {"header"})
    reader.read(page)
    if part == "main" and (not reader.body.text or reader.is_open):
        return html_text(page)
    return reader.title, reader.body.text


def clean_title(title: str) -> str:
    """Return a title in one line, cut to `MAX_TITLE_CHARS`."""
    return " ".join(title[: 10 * MAX_TITLE_CHARS].split())[:MAX_TITLE_CHARS]


def _front_matter(text: str) -> tuple[str, int]:
    """Return the title in the front matter, or "", and the index of the text that follows."""
    begin = _FRONT_MATTER.match(text)
    if begin is None:
        return "", 0
    ends = (begin[1], "...") if begin[1] == "---" else (begin[1],)
    title, at, in_title = "", begin.end(), False
    for line in io.StringIO(text[at : at + _MAX_FRONT_MATTER], newline=""):
        at += len(line)
        if line.rstrip() in ends:
            return title.strip(), at
        if in_title and (line[0].isspace() or not line.strip()):
            title += line.strip() + " "
            continue
        in_title = False
        if not title and (named := _TITLE_KEY.match(line)):
            value = named[1].strip()
            in_title = bool(_BLOCK_SCALAR.fullmatch(value))
            title = "" if in_title else _scalar(value)
    return "", 0


def _scalar(value: str) -> str:
    """Return a YAML or TOML value without its quotes and without a comment that follows."""
    if (double := _DOUBLE_QUOTED.match(value)) is not None:
        return _ESCAPED.sub(r"\1", double[1])
    if (single := _SINGLE_QUOTED.match(value)) is not None:
        return single[1].replace("''", "'")
    return _COMMENT.split(value, maxsplit=1)[0].rstrip()


def _markdown_heading(text: str) -> str:
    # `paragraph`: the line before `line`; `above`: the line before `paragraph`.
    fence, above, paragraph = "", "", ""
    for line in _lines(text):
        bare = line.strip()
        if fence:  # a fence ends with at least as many of its characters, and nothing else
            if bare.startswith(fence) and not bare.strip(fence[0]):
                fence, paragraph = "", bare
            continue
        if begun := _FENCE.match(bare):
            fence, paragraph = begun[0], bare
            continue
        if bare.startswith("#") and (heading := _atx(bare)):
            return heading
        underlines = bare and not bare.strip("=-") and len({*bare}) == 1
        if underlines and paragraph and not above and paragraph[0] not in ">-*+|`~":
            return _plain(paragraph)
        if found := _H1.search(bare):
            return html.unescape(found[1]).strip()
        above, paragraph = paragraph, bare
    return ""


def _atx(line: str) -> str:
    level = len(line) - len(line.lstrip("#"))
    if level > 6 or line[level : level + 1] not in (" ", "\t"):
        return ""
    return _plain(line[level:].strip().rstrip("#").rstrip())


def _plain(heading: str) -> str:
    """Replace the links of a Markdown heading by their text, and drop backquotes and asterisks."""
    of_images = _LINK.sub(r"\1", heading)  # the text of a link may be an image
    return re.sub(r"[*`]", "", _LINK.sub(r"\1", of_images)).strip()


def _is_adornment(line: str) -> bool:
    return len(line) > 1 and _ADORNMENT.fullmatch(line) is not None


def _lines(text: str) -> Iterator[str]:
    """Yield the lines, stripped at the right; a line that is too long is cut to one character."""
    for line in io.StringIO(text, newline=None):
        yield line.rstrip()[:1] if len(line) > _MAX_HEADING_CHARS else line.rstrip()


class _Flow:
    """Collects text, collapses its white space, and writes gaps such as line ends between parts."""

    def __init__(self) -> None:
        self._out = io.StringIO()
        self._gap, self._begun = "", False

    def add(self, piece: str) -> None:
        words = piece.split()
        if not words:
            self._gap = self._gap or (" " if piece else "")
            return
        if piece[0].isspace():
            self._gap = self._gap or " "
        self._out.write((self._gap if self._begun else "") + " ".join(words))
        self._begun, self._gap = True, " " if piece[-1].isspace() else ""

    def separate(self, gap: str) -> None:
        if len(gap) > len(self._gap) or (gap and self._gap == " "):
            self._gap = gap

    @property
    def text(self) -> str:
        return self._out.getvalue()


class _HtmlReader:
    """Reads a page in one pass, from tag to tag, without a stack of open elements.

    ``within``: the name of the elements whose text is read; "": all. ``without``: the names of
    elements whose text is not read.
    """

    def __init__(self, within: str = "", without: AbstractSet[str] = frozenset()) -> None:
        self._within, self._without = within, without
        self._inside = self._outside = 0  # number of open elements whose text is read, or is not
        self.body, self._h1 = _Flow(), _Flow()
        self._title = ""
        self._in_h1 = self._in_pre = False
        self._absent: set[str] = set()  # strings that do not occur in the rest of the page

    @property
    def title(self) -> str:
        return self._title or self._h1.text

    @property
    def is_open(self) -> bool:
        """Whether an element that decides what is read is not closed."""
        return bool(self._inside or self._outside)

    def read(self, page: str) -> None:
        at = 0
        while (tag := page.find("<", at)) >= 0:
            self._add(page[at:tag])
            at = self._after_markup(page, tag)
        self._add(page[at:])

    def _after_markup(self, page: str, tag: int) -> int:
        """Handle the markup that starts at ``tag``; return the index of the text that follows."""
        closes = page.startswith("/", tag + 1)
        name = _NAME.match(page, tag + 1 + closes)
        if name:
            end = self._end_of_tag(page, name.end())
            return self._closed(name[0].lower(), end) if closes else self._opened(name, end)
        if page.startswith("<!--", tag):
            end = self._find("-->", page, tag + 4)
            return len(page) if end < 0 else end + 3
        if page.startswith(("<!", "<?", "</"), tag):
            end = self._find(">", page, tag + 2)
            return len(page) if end < 0 else end + 1
        self._add("<")
        return tag + 1

    def _opened(self, tag: re.Match[str], end: int) -> int:
        name, page = tag[0].lower(), tag.string
        self.body.separate(_GAPS.get(name, ""))
        if self._in_h1 and name in _GAPS:
            self._h1.separate(" ")
        if name == "svg" and page.endswith("/>", 0, end):  # no other hidden element can end in />
            return end
        if name in _HIDDEN or name == "title":
            close = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(page, end)
            if name == "title" and close and not self._title:
                self._title = clean_title(_unescaped(page[end : close.start()]))
            return len(page) if close is None else self._end_of_tag(page, close.end())
        self._inside += name == self._within
        self._outside += name in self._without
        if name == "h1":
            self._in_h1 = not self._h1.text
        self._in_pre |= name == "pre"
        return end

    def _closed(self, name: str, end: int) -> int:
        self.body.separate(_GAPS.get(name, ""))
        self._inside -= name == self._within and self._inside > 0
        self._outside -= name in self._without and self._outside > 0
        if name == "h1":
            self._in_h1 = False
        elif name == "pre":
            self._in_pre = False
        return end

    def _add(self, raw: str) -> None:
        if not raw:
            return
        text = _unescaped(raw)
        for n, line in enumerate(text.split("\n") if self._in_pre else [text]):
            if n:
                self.body.separate("\n")
            if not self._outside and (self._inside or not self._within):
                self.body.add(line)
        if self._in_h1:
            self._h1.add(text[:MAX_TITLE_CHARS])

    def _end_of_tag(self, page: str, at: int) -> int:
        """Return the position after the ``>`` that ends a tag; ``>`` in a quoted value does not."""
        while found := _QUOTE_OR_END.search(page, at):
            if found[0] == ">":
                return found.end()
            is_value = page[at : found.start()].rstrip().endswith("=")
            close = self._find(found[0], page, found.end()) if is_value else -1
            at = found.end() if close < 0 else close + 1
        return len(page)

    def _find(self, mark: str, page: str, start: int) -> int:
        if mark in self._absent:  # each absent mark is searched for once: the time stays linear
            return -1
        found = page.find(mark, start)
        if found < 0:
            self._absent.add(mark)
        return found


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a character reference with thousands of digits
        return text


_HYPHENATED = re.compile(r"(?<=[^\W\d_]{2})[-\u00ad\u2010][ \t]*\n[ \t]*(?=[a-z\u00df-\u00ff])")
_MAX_PAGE_CHARS = 1 << 20  # maximum characters of a page or title; the rest is cut off


NO_TEXT = "no page has text; a scanned PDF needs text recognition (OCR) first"


def read_pdf(data: bytes) -> tuple[str, Iterator[tuple[int, str]]]:
    """Return the title of a PDF file, or "", and an iterator over its pages with text, by number.

    A file that cannot be opened raises `BadRow`; so does the iterator at a damaged page, and if no
    page has text.
    """
    try:
        from pypdf import PdfReader
    except ImportError:
        raise BadRow(f"a PDF file needs pypdf: {install()}") from None
    with _pypdf("the PDF file"):
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise BadRow("the PDF file is encrypted; remove its password")
        title = str((reader.metadata.title if reader.metadata else "") or "")
        n_pages = len(reader.pages)

    def pages() -> Iterator[tuple[int, str]]:
        empty = True
        for number in range(1, n_pages + 1):
            with _pypdf(f"page {number}, which is left out with all later pages,"):
                text = reader.pages[number - 1].extract_text()
            if text := _HYPHENATED.sub("", _clean(text)):
                empty = False
                yield number, text
        if empty:
            raise BadRow(NO_TEXT)

    return _clean("" if title.strip().lower() == "untitled" else title), pages()


@contextlib.contextmanager
def _pypdf(what: str) -> Iterator[None]:
    """Turn the errors of pypdf, which are of many types, into a `BadRow` that names ``what``.

    Its logger is silenced, since it would log each defect that pypdf repairs.
    """
    logger = logging.getLogger("pypdf")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    except BadRow:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise BadRow(f"{what} cannot be read", reason) from None
    finally:
        logger.setLevel(level)


def _clean(text: str) -> str:
    """Cut a text to `_MAX_PAGE_CHARS`, drop NUL characters and replace lone surrogates by "?"."""
    text = text[:_MAX_PAGE_CHARS].replace("\0", "")
    return text.encode("utf-8", "replace").decode().strip()
