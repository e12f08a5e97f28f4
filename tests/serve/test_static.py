"""The files of the page, with headers that keep it from other hosts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from sbert_search.serve.app import page_routes


def get(app: Starlette, path: str) -> tuple[int, dict[str, str], bytes]:
    """Send a request to an application, without a server."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()  # the client neither sends nor hangs up

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [],
    }
    asyncio.run(app(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(part.get("body", b"") for part in sent[1:])


@pytest.fixture
def app(tmp_path: Path) -> Starlette:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html>")
    (folder / "search.js").write_text("'use strict';")
    (tmp_path / "secret.txt").write_text("secret")
    return Starlette(routes=page_routes(folder))


def test_the_page_and_its_files_are_sent(app: Starlette) -> None:
    status, headers, body = get(app, "/")
    assert (status, body) == (200, b"<!doctype html>")
    assert headers["content-type"].startswith("text/html")
    assert headers["content-security-policy"].startswith("default-src 'self'")
    status, headers, body = get(app, "/page/search.js")
    assert (status, body) == (200, b"'use strict';")
    assert "javascript" in headers["content-type"]
    assert headers["content-security-policy"].startswith("default-src 'self'")


@pytest.mark.parametrize(
    "path", ["/page/../secret.txt", "/page/..%2fsecret.txt", "/page//etc/passwd", "/page/none"]
)
def test_no_other_file_is_sent(app: Starlette, path: str) -> None:
    from starlette.exceptions import HTTPException

    try:
        status, _, body = get(app, path)
    except HTTPException as error:
        status, body = error.status_code, b""
    assert status == 404
    assert b"secret" not in body
