"""The page in Chromium, opened as a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbert_search.lab.errors.report import make_page
from tests.lab.errors.test_record import REPORT

CHROMIUM = os.environ.get("SBERT_SEARCH_CHROMIUM", "/usr/bin/chromium")


@pytest.mark.browser
def test_a_narrow_window_shows_the_page_without_scrolling_sideways(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    path = tmp_path / "errors.html"
    path.write_text(make_page(REPORT))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.goto(path.as_uri())
        page.locator("table").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        browser.close()
