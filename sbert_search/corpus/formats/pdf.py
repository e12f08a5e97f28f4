"""Read the text of PDF files, page by page, with pypdf, which the extra ``pdf`` installs."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator

from sbert_search.corpus.formats.rows import BadRow

MAX_PAGE_CHARS = 1 << 20  # maximum characters of a page or title; the rest is cut off


def read_pdf(data: bytes) -> tuple[str, Iterator[tuple[int, str]]]:
    """Return the title of a PDF file, or "", and an iterator over its pages with text.

    The iterator yields the number of each page, from 1, and its text. It raises `BadRow` at a
    damaged page, and if no page has text.

    Raises:
        BadRow: pypdf is not installed, or the file is damaged, has a password or is no PDF.
    """
    try:
        from pypdf import PdfReader
    except ImportError:
        raise BadRow("a PDF file needs pypdf: pip install 'sbert-search[pdf]'") from None
    try:
        with _without_notes():
            reader = PdfReader(io.BytesIO(data))
            if reader.is_encrypted and not reader.decrypt(""):
                raise BadRow("the PDF file is encrypted; remove its password")
            title = str((reader.metadata.title if reader.metadata else "") or "")
            n_pages = len(reader.pages)
    except BadRow:
        raise
    except Exception as error:  # pypdf raises errors of many types for damaged files
        raise _damaged("the PDF file", error) from None

    def pages() -> Iterator[tuple[int, str]]:
        empty = True
        for number in range(n_pages):
            try:
                with _without_notes():
                    text = reader.pages[number].extract_text()
            except Exception as error:
                what = f"page {number + 1}, which is left out with all later pages,"
                raise _damaged(what, error) from None
            if text := _clean(text):
                empty = False
                yield number + 1, text
        if empty:
            raise BadRow("no page has text; a scanned PDF needs text recognition (OCR) first")

    return _clean(title), pages()


@contextlib.contextmanager
def _without_notes() -> Iterator[None]:
    """Silence the logger of pypdf, which would log each defect that pypdf repairs."""
    logger = logging.getLogger("pypdf")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _clean(text: str) -> str:
    """Cut a text to `MAX_PAGE_CHARS`, drop NUL characters and replace lone surrogates by "?"."""
    text = text[:MAX_PAGE_CHARS].replace("\0", "")
    return text.encode("utf-8", "replace").decode().strip()


def _damaged(what: str, error: Exception) -> BadRow:
    reason = str(error) or type(error).__name__
    return BadRow(f"{what} cannot be read", reason)
