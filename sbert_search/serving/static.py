"""The search page: the page itself at ``/``, and all files of its folder under ``/page/``.

All of them are public; the page asks for a token if the server needs one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.responses import FileResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


def page_routes(folder: Path) -> Sequence[BaseRoute]:
    """Return the routes of the page in a folder."""
    index = _guarded(FileResponse(folder / "index.html", media_type="text/html"))
    files = _guarded(StaticFiles(directory=folder))
    return [Route("/", index, methods=["GET"]), Mount("/page", files)]


class _Guarded:
    """Adds headers that keep the page from loading other hosts' files and from being framed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers)


def _guarded(app: ASGIApp) -> ASGIApp:
    return _Guarded(app)
