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
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain, compress

from sbert_search.errors import install
from sbert_search.text.fields import HtmlPart, References
from sbert_search.text.formats.lines import parse_object
from sbert_search.text.formats.rows import NO_BUDGET, BadRow, Cell, RowLimit
from sbert_search.text.letters import plain_letters

MAX_TITLE_CHARS = 300
_MAX_HEADING_CHARS = 1000  # a longer line is no heading
_MAX_FRONT_MATTER = 1 << 16  # characters

_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n")
_BLOCK_SCALAR = re.compile(r"[|>][+-]?\d?[+-]?")  # in YAML: the value is in the lines below
_NAME_OF_FIELD = r"""("[^"]+"|'[^']+'|\w[\w .()/&-]{0,60}?)[ \t]*"""
_KEYS = {
    "---": re.compile(_NAME_OF_FIELD + r":(?!\S)[ \t]*(.*)"),
    "+++": re.compile(_NAME_OF_FIELD + r"=[ \t]*(.*)"),
}
_ITEM = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^,]+)""")  # of [tides, "sea"]
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
    "article aside blockquote body center details dialog figure footer form h1 h2 h3 h4 h5 h6 "
    "header hgroup hr main menu nav ol p pre search section table ul"
)
_MENUS = frozenset(("aside", "footer", "nav"))
_LINES = (
    "address br caption dd dir div dl dt fieldset figcaption legend li optgroup option summary tr"
)
_GAPS = {  # by element: what separates its content from the text around it
    **dict.fromkeys(_PARAGRAPHS.split(), "\n\n"),
    **dict.fromkeys(_LINES.split(), "\n"),
    **dict.fromkeys(("button", "select", "td", "textarea", "th"), " "),
}


def markdown(text: str) -> tuple[str, str, dict[str, Cell | list[str]]]:
    """Return the title of a Markdown document, its text, and the fields of its front matter.

    The title is that of the front matter (YAML or TOML); if there is none, the first heading or "".
    The text is without the front matter. A field is a text or a list of texts; objects and empty
    values are left out.
    """
    fields, start = _front_matter(text)
    titles = [fields.pop(name) for name in [*fields] if name.lower() == "title"]
    title = next((each for each in titles if isinstance(each, str)), "")
    body = text[start:]
    return title or _markdown_heading(body), body, fields


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


def _front_matter(text: str) -> tuple[dict[str, Cell | list[str]], int]:
    """Return the fields of the front matter, and the index of the text that follows."""
    begin = _FRONT_MATTER.match(text)
    if begin is None:
        return {}, 0
    ends, key = (begin[1], "...") if begin[1] == "---" else (begin[1],), _KEYS[begin[1]]
    top: dict[str, list[str]] = {}  # the lines of each field
    part, lines, at = top, list[str](), begin.end()
    for line in io.StringIO(text[at : at + _MAX_FRONT_MATTER], newline=""):
        at += len(line)
        if line.rstrip() in ends:
            values = {name: _front_value(own) for name, own in top.items()}
            return {name: value for name, value in values.items() if value}, at
        if line.startswith("#"):
            continue
        named, is_table = key.match(line), line.startswith("[")
        if top and (line[0].isspace() or line.startswith(("- ", "]"))):
            lines.append(line.strip())
            continue
        if is_table:  # the fields of a table of TOML follow, which are left out
            part = {}
        elif not named and (not top or any(" " in name for name in top)):
            break  # these are lines of text, and one of them has a colon
        lines = [named[2].strip()] if named else []
        if named:
            part.setdefault(_scalar(named[1]), lines)
    return {}, 0


def _front_value(lines: list[str]) -> Cell | list[str] | None:
    """Return the text or list in the lines of a field; None: it is empty or an object."""
    first, *rest = lines
    if _BLOCK_SCALAR.fullmatch(first):
        return Cell(" ".join(rest).strip())
    if first.startswith("["):
        listed = " ".join(lines)[1:].rpartition("]")[0]
        return [each for item in _ITEM.findall(listed) if (each := _scalar(item.strip()))]
    if not _COMMENT.split(f" {first}")[0].strip():
        items = [line[1:].strip() for line in rest if line.startswith("-")]
        if items or not rest or _KEYS["---"].match(rest[0]):
            return [_scalar(item) for item in items if item and not _KEYS["---"].match(item)]
        first, *rest = rest
    value = "" if first[0] in "{&*!" else _scalar(" ".join([first, *rest]).strip())
    return Cell("" if value in ("~", "null") else value)


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


_HYPHENS = "\u00ad\u2010-"
# A word that a line end splits; not the first of two that share a part, as in "pre- and post-war".
_BROKEN = re.compile(
    rf"(?<![\w{_HYPHENS}])([\w{_HYPHENS}]*[^\W\d_]{{2}})[{_HYPHENS}][ \t]*\n[ \t]*"
    r"(?!(?:and|or|to|und|oder|bis|sowie)\b)(?=([a-z\u00df-\u00ff][^\W\d_]*))"
)
_WORD = re.compile(r"\w+(?:[\u2010-]\w+)*")
_NUMERAL = re.compile(
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty-(?:one|two|three|four|five|six|seven|eight|nine|"
    r"first|second|third|fourth|fifth|sixth|seventh|eighth|ninth)"
)
# Words inside a chain such as signal-to-noise.
_LINKS = frozenset(["a", "and", "by", "for", "in", "of", "on", "or", "the", "to", "und", "zu"])
_NUMBER = re.compile(r"[0-9]{1,9}")
_MAX_PAGE_CHARS = 1 << 20  # maximum characters of a page or title; the rest is cut off
_MAX_PART_CHARS = 1 << 22  # pages that are held and compared together
_MAX_RUNNING_LINES = 4  # of a header or a footer
_MAX_RUNNING_CHARS = 200
_MAX_STAMP_CHARS = 200  # of a scanned page, such as its number
_NO_TITLE = re.compile(  # what programs write if the author gave no title
    r"untitled.*|\(?(anonymous|unspecified)\)?|"
    r"microsoft (word|powerpoint|excel)\b.*|(powerpoint|slide|document|presentation) ?"
    r"(presentation|\d+)?|.*\.(docx?|dotx?|rtf|odt|pages|pptx?|xlsx?|indd|qxd|fm|wpd|tex|dvi|e?ps|pdf)",
    re.IGNORECASE,
)
_NO_AUTHOR = ("", "anonymous", "unknown", "unspecified")  # perhaps in parentheses
NO_TEXT = "no page has text; a scanned PDF needs text recognition (OCR) first"
_REFERENCES = re.compile(  # a line without white space, as in R EFERENCES, of small capitals
    r"([\d.]+|[ivx]+\.|[a-z]\.)?(references(cited|andnotes)?|bibliography|workscited|literatur(e|"
    r"verzeichnis)?|bibliographie|références(bibliographiques)?|bibliografía|referencias)[.:]?"
)
_APPENDIX = re.compile(
    r"(?=[A-Z\d])(?:\w{1,3}[.)]? )?(?i:appendi(?:x|ces)|anhang|annexe?|ap[ée]ndice|anexo|"
    r"supplement(?:ary|al)?|supporting information)\b.{0,80}"
)
_HTML = (b"<!doctype html", b"<html")  # a page of a login or an error that was saved as PDF


class Pdf:
    """A PDF file that is open. A file that cannot be opened raises `BadRow`.

    ``title`` is "" if the author gave none. ``columns`` are ``author`` and ``created``, the day, if
    the file has them. ``labels`` are the printed numbers of all pages, such as ``iv`` and ``101``,
    if the file has others than 1, 2, 3. ``scanned`` are the pages that are images without text, of
    those that `pages` has read, and ``cut`` those from which references were dropped.
    """

    def __init__(self, data: bytes, references: References = "keep") -> None:
        self._drops_references = references == "drop"
        try:
            from pypdf import PdfReader
        except ImportError:
            raise BadRow(f"a PDF file needs pypdf: {install()}") from None
        if data[:_MAX_STAMP_CHARS].lstrip(b"\xef\xbb\xbf\t\n\f\r ")[:14].lower().startswith(_HTML):
            raise BadRow("this is an HTML page and no PDF file; download the file again")
        with _pypdf("the PDF file"):
            self._reader = PdfReader(io.BytesIO(data))
            if self._reader.is_encrypted and not self._reader.decrypt(""):
                raise BadRow("the PDF file is encrypted; remove its password")
            about = self._reader.metadata
            named = ("title", "author", "subject", "keywords")
            title, author, subject, keywords = (
                clean_title(_clean(str(getattr(about, name, None) or ""))) for name in named
            )
            self.columns: dict[str, str | list[str]] = {}
            for name, value in (("subject", subject), ("author", author)):
                if value.strip("()").lower() not in _NO_AUTHOR:
                    self.columns[name] = value
            if words := [word for part in re.split("[,;]", keywords) if (word := part.strip())]:
                self.columns["keywords"] = words
            with contextlib.suppress(ValueError):  # not a date
                if about and (created := about.creation_date):  # front matter may have other texts
                    self.columns["created"] = Cell(created.date())
            self._n_pages = len(self._reader.pages)
            self.labels: list[str] = []
            with contextlib.suppress(Exception):  # broken labels; the pages may be sound
                labels = [clean_title(_clean(label)) for label in self._reader.page_labels]
                if labels != [str(n) for n in range(1, self._n_pages + 1)]:
                    self.labels = labels
        self.title = "" if _NO_TITLE.fullmatch(title) else title
        self.scanned: list[int] = []
        self.cut: list[int] = []

    def pages(self) -> Iterator[tuple[int, str]]:
        """Yield the pages with text, each with its number, from 1.

        A damaged page raises `BadRow` after those before it, and so does a file without text.
        """
        part, images, held, empty = dict[int, str](), set[int](), 0, True
        for number in range(1, self._n_pages + 1):
            try:
                with _pypdf(f"page {number}, which is left out with all later pages,"):
                    page = self._reader.pages[number - 1]
                    part[number] = _clean(page.extract_text())
                    with contextlib.suppress(Exception):  # the text of the page was read
                        if len(part[number]) <= _MAX_STAMP_CHARS and page.images.keys():
                            images.add(number)
            except BadRow:
                yield from self._with_text(part, images)
                raise
            held += len(part[number])
            if number == self._n_pages or held > _MAX_PART_CHARS:
                for each in self._with_text(part, images):
                    empty = False
                    yield each
                part, held = {}, 0
        if empty:
            raise BadRow(NO_TEXT)

    def _with_text(self, part: Mapping[int, str], images: set[int]) -> list[tuple[int, str]]:
        texts: Mapping[int, str] = _joined(_without_running_lines(part))
        self.scanned += [number for number in texts if not texts[number] and number in images]
        if self._drops_references and len(texts) == self._n_pages:  # not of a book in parts
            kept = _without_references(texts)
            self.cut += [
                number for number in texts if len(kept[number]) < len(texts[number].strip())
            ]
            texts = kept
        return [(number, text) for number, text in texts.items() if text]


def _without_running_lines(pages: Mapping[int, str]) -> dict[int, str]:
    """Leave out running headers, footers and page numbers; keep all if no page has anything else.

    These are lines at the top or the bottom of at least three pages, and of at least half of the
    left or of the right pages. They are equal, or they differ in numbers of which the first or the
    last goes up with the pages; so the rows of a table that a page end cuts are none.
    """
    lines = {n: text.split("\n") for n, text in pages.items() if text}
    _drop_counting_lines(lines)
    n_pages = Counter(n % 2 for n in lines)
    for edge in (0, -1):
        for _ in range(_MAX_RUNNING_LINES):
            keys = {n: _running_keys(own[edge], n) for n, own in lines.items() if own}
            found = Counter((key, n % 2) for n, own in keys.items() for key in own)
            running = {
                key
                for (key, side), n in found.items()
                if 2 * n >= n_pages[side] and found[key, 0] + found[key, 1] >= 3
            }
            for n in [n for n, own in keys.items() if own & running]:
                del lines[n][edge]
                while lines[n] and not lines[n][edge].strip():
                    del lines[n][edge]
    left = {n: "\n".join(lines.get(n, ())).strip() for n in pages}
    return left if any(left.values()) else dict(pages)


def _drop_counting_lines(lines: dict[int, list[str]]) -> None:
    """Delete lines near an edge that are equal on every page but for a number that counts pages.

    Other running lines may stand between them and the edge, as on a first page with its own header.
    """

    def keys(n: int, at: int) -> set[Hashable]:
        line, below = lines[n][at], len(lines[n]) - 1 - at
        is_far = min(at, below) >= _MAX_RUNNING_LINES or len(line) > _MAX_RUNNING_CHARS
        found = [] if is_far else [*_NUMBER.finditer(line)]
        return {(line[: m.start()], line[m.end() :], int(m[0]) - n) for m in found[:1] + found[-1:]}

    of_pages = [{key for at in range(len(own)) for key in keys(n, at)} for n, own in lines.items()]
    every = set.intersection(*of_pages) if len(lines) > 2 else set()
    for n, own in lines.items():
        lines[n] = [line for at, line in enumerate(own) if not every & keys(n, at)]


def _running_keys(line: str, number: int) -> set[Hashable]:
    """Return what a line of the page ``number`` has in common with such lines of other pages."""
    line = line.strip()
    if len(line) > _MAX_RUNNING_CHARS:
        return set()
    numbers, shape = [int(digits) for digits in _NUMBER.findall(line)], _NUMBER.sub("0", line)
    ends = {(shape, end, numbers[end] - number) for end in (0, -1)} if numbers else set()
    return {line, *ends}


def _joined(pages: Mapping[int, str]) -> dict[int, str]:
    """Join the words that line ends split, and leave out the hyphen unless it is a part of them.

    That the pages have the word in one line tells which. If they have it with and without a hyphen
    equally often, mostly never, the hyphen stays before a word of the pages if the first part has a
    hyphen elsewhere (two-dimensional, two-way), or in a chain of words (state-of-the-art). In a
    number (thirty-one) it always stays.
    """
    written: Counter[str] = Counter()  # words that no line end splits; nouns of German are capital
    for text in pages.values():
        written.update(word.replace("\u2010", "-") for word in _WORD.findall(text))
    for text in pages.values():
        for broken in _BROKEN.finditer(text):
            written.subtract(broken.groups())
    written = +written
    known: Counter[str] = Counter()
    for word, n in written.items():
        known[word.casefold()] += n
    starts = {word.partition("-")[0] for word in known if "-" in word}

    def join(broken: re.Match[str]) -> str:
        left, right = broken.groups()
        word = left.casefold()
        plain, hyphenated = known[f"{word}{right}"], known[f"{word}-{right}"]
        last = word.rpartition("-")[2]
        keep = hyphenated > plain or bool(_NUMERAL.fullmatch(f"{last}-{right}"))
        if plain == hyphenated and not keep:
            chain = "-" in word and (last in known or last in _LINKS)
            keep = chain or (right in written and ("-" in left or word in starts))
        return f"{left}-" if keep else left

    return {number: _BROKEN.sub(join, text) for number, text in pages.items()}


def _without_references(pages: Mapping[int, str]) -> Mapping[int, str]:
    """Leave out lists of references, as `ReadSettings.references` says; keep all if all is one."""
    lines = [(n, line) for n, text in pages.items() for line in text.split("\n")]
    end = start = len(lines)
    kept, last_page = [True] * end, 0
    for at in range(end // 3, end):  # a table of contents stands before
        n, line = lines[at]
        if _REFERENCES.fullmatch("".join(line.split()).casefold()):
            if start == end or n > last_page + 1:  # else a running header of the list
                start = at
            last_page = n
        elif start < end and _APPENDIX.fullmatch(line.strip()):
            kept[start:at] = [False] * (at - start)
            start = end
    kept[start:] = [False] * (end - start)
    left = dict.fromkeys(pages, "")
    for n, line in compress(lines, kept):
        left[n] += f"{line}\n"
    left = {n: text.strip() for n, text in left.items()}
    return left if any(left.values()) else pages


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
        if "cryptography" in str(error):
            needs = "is encrypted with AES, which needs cryptography: python -m pip install"
            raise BadRow(f"the PDF file {needs} cryptography") from None
        reason = str(error) or type(error).__name__
        raise BadRow(f"{what} cannot be read", reason) from None
    finally:
        logger.setLevel(level)


def _clean(text: str) -> str:
    """Cut a text to `_MAX_PAGE_CHARS`, and make it plain: letters in place of their forms in fonts.

    NUL characters are dropped, and lone surrogates become "?".
    """
    text = plain_letters(text[:_MAX_PAGE_CHARS].replace("\0", ""))
    return text.encode("utf-8", "replace").decode().strip()
