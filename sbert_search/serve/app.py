"""The ASGI application: all operations by path, the OpenAPI document and the search page.

The page itself is at ``/``, and all files of its folder are under ``/page/``. All of them are
public; the page asks for a token if the server needs one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sbert_search.serve.access_log import AccessLog, LogOtherRequests
from sbert_search.serve.endpoint import JSON, AnyOperation, Call, Endpoint, Operation, Reply
from sbert_search.serve.openapi import openapi_document
from sbert_search.serve.problems import Problem
from sbert_search.serve.routes import (
    classifying,
    embedding,
    operating,
    reranking,
    searching,
    updating,
)
from sbert_search.serve.state import Served, reloading

HEADERS = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


def page_routes(folder: Path) -> Sequence[BaseRoute]:
    """Return the routes of the page in a folder."""
    index: ASGIApp = _Guarded(FileResponse(folder / "index.html", media_type="text/html"))
    files: ASGIApp = _Guarded(StaticFiles(directory=folder))
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


Context: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""Opens a context that stays open while the server answers requests."""

PAGE = Path(__file__).with_name("page")

OPERATIONS: Sequence[AnyOperation] = (
    *embedding.OPERATIONS,
    *reranking.OPERATIONS,
    *classifying.OPERATIONS,
    *searching.OPERATIONS,
    *updating.OPERATIONS,
    *operating.OPERATIONS,
)


def build_app(
    served: Served, log: AccessLog | None = None, *, beside: Context | None = None
) -> Starlette:
    """Make the ASGI application of a server.

    ``beside`` is another context that stays open while requests are answered.
    """
    mcp = None
    if served.mcp:
        from sbert_search.serve.mcp import McpRoute  # needs the extra mcp

        mcp = McpRoute(served)
    root = _root(served)
    operations = [root if root and each.path == "/" else each for each in OPERATIONS]
    operations += [mcp.operation] if mcp else []
    document = msgspec.json.encode(openapi_document(operations))

    async def describe(served: Served, call: Call[None]) -> Reply:
        return Reply(document)

    described: Operation[None] = Operation("GET", "/openapi.json", describe)
    routes: list[BaseRoute] = []
    for operation in (*operations, described):
        endpoint = Endpoint(operation, served, log)
        for path in operation.paths:
            kind = _EncodedRoute if "{" in path else Route
            routes.append(kind(path, endpoint, methods=[operation.method]))
    routes += page_routes(PAGE)
    middleware = [Middleware(LogOtherRequests, log=log)] if log else []
    if served.origins:  # their pages may send requests, preflights too, and read the answers
        methods = sorted({operation.method for operation in OPERATIONS})
        cors = Middleware(
            CORSMiddleware,
            allow_origins=served.origins,
            allow_methods=methods,
            allow_headers=["*"],
        )
        middleware.append(cors)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            await running.enter_async_context(reloading(served))
            if mcp:
                await running.enter_async_context(mcp.running())
            if beside:
                await running.enter_async_context(beside())
            yield

    return Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={HTTPException: _no_route},
        lifespan=lifespan,
    )


def _root(served: Served) -> AnyOperation | None:
    """Return the operation at ``POST /`` of a server without embedding models, as in TEI."""
    if served.embedders:
        return None
    if served.classifiers:
        return classifying.ROOT
    return reranking.ROOT if served.rerankers else None


class _EncodedRoute(Route):
    """A route that splits a path into its parts before it decodes them.

    So the id of a document can be any text: ``a%2Fsimilar`` is the id ``a/similar``.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches({**scope, "path": scope["raw_path"].decode("ascii")})
        if match is not Match.NONE:
            parts = {name: unquote(part) for name, part in found["path_params"].items()}
            found["path_params"] = parts
        return match, found


def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    shown = f"{request.method} {request.url.path}"
    problem = Problem(status, f"The server has no {shown:.200}; see /openapi.json.")
    headers = dict(getattr(error, "headers", None) or {})
    return Response(msgspec.json.encode(problem.body()), status, headers, JSON)
