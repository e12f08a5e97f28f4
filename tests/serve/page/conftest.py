"""A server of an index with columns of every kind, and a browser that records its requests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbert_search.index.index import Index
from tests.serve.live import Live, live_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("SBERT_SEARCH_CHROMIUM", "/usr/bin/chromium")
LONG = "The tower has many rooms. " * 60
ROWS = [
    {
        "_id": "mill",
        "title": "Water mills",
        "text": f"{LONG}The river turns a wheel. {LONG}",
        "kind": "craft",
        "year": 1987,
        "seen": "2024-05-01",
        "tags": ["water", "stone"],
    },
    {
        "_id": "bread",
        "title": "Bread",
        "text": "Flour, water and yeast make a dough. It rises before it is baked.",
        "kind": "craft",
        "year": 2003,
        "seen": "2024-06-11",
        "tags": ["water", "flour"],
    },
    {
        "_id": "a/b & <i>c</i>",
        "title": "<img src=x onerror=alert(1)>",
        "text": "<script>document.title = 'taken'</script> Markup near the river.",
        "kind": "it's <b>code</b>",
        "year": 2019,
    },
    *(
        {
            "_id": f"vaccine-{i}",
            "title": f"Vaccine {i}",
            "text": f"Vaccines train the immune system to recognise germ {i}.",
            "kind": "medicine",
            "year": 2000 + i,
            "seen": f"2023-01-{i + 1:02}",
        }
        for i in range(25)
    ),
]


@dataclass
class Visit:
    """A page of the browser, and what it asked for and complained of.

    Attributes:
        page: The page.
        urls: Addresses of its requests.
        errors: Its errors, those of the content security policy among them.
    """

    page: Page
    urls: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def search(self, query: str) -> None:
        """Type a query and wait for its results."""
        self.page.locator("#query").fill(query)
        self.page.locator(".hit").first.wait_for()
        self.page.locator(".hits:not(.waiting)").wait_for()

    def titles(self) -> list[str]:
        titles: list[str] = self.page.locator(".hit .title").all_inner_texts()
        return titles


@pytest.fixture(scope="package")
def site(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of two indexes with a reranker."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Index.build(
        folder / "rows.jsonl",
        out=folder / "my.index",
        model="hashing",  # an untrained encoder would rank by chance
        column_types={"seen": "date"},
    )
    arguments = ("--rerank", models / "cross", "--precision", "fp32")
    second = f"second={models / 'tiny.index'}"
    with live_server(f"first={folder / 'my.index'}", second, *arguments, cwd=models) as server:
        yield server


@pytest.fixture(scope="package")
def locked(built: Path, token_file: Path) -> Iterator[Live]:
    """A server that needs a token."""
    with live_server(built, "--token-file", token_file) as server:
        yield server


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """A page of a fresh context; no page may have errors or leave its host."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(10_000)
    visited = Visit(context.new_page())
    visited.page.on("request", lambda request: visited.urls.append(request.url))
    visited.page.on("pageerror", lambda error: visited.errors.append(str(error)))
    visited.page.on(
        "console",
        lambda message: visited.errors.append(message.text) if message.type == "error" else None,
    )
    yield visited
    context.close()
    assert {url.split("/")[2].split(":")[0] for url in visited.urls} <= {"127.0.0.1"}
    refused = [error for error in visited.errors if "Failed to load resource" not in error]
    assert not refused
