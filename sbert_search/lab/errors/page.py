"""Make one HTML page of the errors of a run, which needs no other file and no network."""

from __future__ import annotations

from pathlib import Path

from sbert_search.lab.errors.record import ErrorReport
from sbert_search.lab.templates import fill_page

_FILES = Path(__file__).parent / "page_files"


def make_page(report: ErrorReport) -> str:
    """Return a page with the slices, and the worst items with their texts."""
    return fill_page(
        _read("errors.html"),
        title=f"Errors of {report.model} on {report.task}",
        style=_read("errors.css"),
        script=_read("errors.js"),
        data=report.to_mapping(),
    )


def _read(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")
