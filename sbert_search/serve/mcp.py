"""Offer `mcp_tools` over the Model Context Protocol, by HTTP or over stdin and stdout.

This is the only module that imports the protocol's SDK, which the extra ``mcp`` installs. The route
``/mcp`` has no sessions and no streams: each message is an HTTP request, whose answer is JSON.
Nothing is kept between requests, and access, limits, log and metrics are those of other routes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import msgspec
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.types import Message, Scope

from sbert_search.serve.endpoint import JSON, Call, Operation, Reply
from sbert_search.serve.mcp_tools import TOOLS, McpAnswer, McpMessage, described_indexes
from sbert_search.serve.problems import Problem, problem_of
from sbert_search.serve.queue import Work
from sbert_search.serve.state import Served, reloading
from sbert_search.version import __version__

_INSTRUCTIONS = (
    "Search the documents of the user's indexes with the tool `search`. Hits have the best passage "
    "of a document; `document` reads a whole document, and `similar` finds others like it."
)


@dataclass(slots=True)
class Exchange:
    """One message of a client, over HTTP or another channel."""

    work: Work = field(default_factory=Work)  # the cost of the answer so far
    failure: Exception | None = None  # fails the HTTP request as a whole


def mcp_server(served: Served) -> Server:
    """Make an MCP server that offers `TOOLS`."""

    async def list_tools(
        context: ServerRequestContext, given: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_listed(served))

    async def call_tool(
        context: ServerRequestContext, given: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = TOOLS.get(given.name)
        if tool is None:
            message = f"There is no tool {given.name!r:.100}; the tools are: {', '.join(TOOLS)}."
            raise MCPError(types.INVALID_PARAMS, message)
        exchange = _exchange_of(context)
        try:
            answer = await tool.call(served, given.arguments or {}, exchange.work)
        except Exception as error:
            problem = problem_of(error)
            if problem is None or problem.status == 429:  # over HTTP, the status is 500 or 429
                exchange.failure = error
                raise
            served.metrics.failures.add(labels={"err": problem.kind})
            return _refused(problem)
        return types.CallToolResult(
            content=[types.TextContent(text=msgspec.json.encode(answer).decode())],
            structured_content=msgspec.to_builtins(answer),
        )

    return Server(
        "sbert-search",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _listed(served: Served) -> list[types.Tool]:
    return [
        types.Tool(
            name=tool.name,
            title=tool.title,
            description=f"{tool.description}\n\n{described_indexes(served)}",
            input_schema=tool.input_schema(served),
            output_schema=tool.output_schema(),
            annotations=types.ToolAnnotations(
                read_only_hint=True, idempotent_hint=True, open_world_hint=False
            ),
        )
        for tool in TOOLS.values()
    ]


def _refused(problem: Problem) -> types.CallToolResult:
    """Return a problem as a result that a language model can read and act on."""
    shown = f"{problem.param}: {problem.message}" if problem.param else problem.message
    # Structured content would have to fit the tool's schema of answers.
    return types.CallToolResult(content=[types.TextContent(text=shown)], is_error=True)


def _exchange_of(context: ServerRequestContext) -> Exchange:
    """Return the exchange of a message over HTTP, or a new one for a message of another channel."""
    exchange = None if context.request is None else context.request.state.exchange
    return exchange if isinstance(exchange, Exchange) else Exchange()


# Headers of the client that are replaced. The SDK refuses other media types than JSON in the first
# two. The length changes, since the message is encoded again.
_REPLACED_HEADERS = (b"accept", b"content-type", b"content-length")
_HEADERS = [(b"accept", JSON.encode()), (b"content-type", JSON.encode())]


class McpRoute:
    """The route of a server; `operation` answers only while the context `running` is open."""

    def __init__(self, served: Served) -> None:
        self._sessions = StreamableHTTPSessionManager(
            mcp_server(served),
            json_response=True,
            stateless=True,
            max_request_body_size=served.limits.body_bytes,
        )
        self.operation = Operation(
            "POST",
            "/mcp",
            self._answer,
            McpAnswer,
            McpMessage,
            style="mcp",
            versioned=False,
            may_be_empty=True,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer messages while this context is open."""
        async with self._sessions.run():
            yield

    async def _answer(self, served: Served, call: Call[McpMessage]) -> Reply:
        """Answer a message of the Model Context Protocol."""
        exchange = Exchange(call.work)
        reply = await self._exchanged(call.scope, msgspec.json.encode(call.body), exchange)
        if exchange.failure is not None:
            raise exchange.failure
        return reply

    async def _exchanged(self, scope: Scope, body: bytes, exchange: Exchange) -> Reply:
        """Let the SDK answer a message; both bodies are small, so they are passed as a whole."""
        given = [pair for pair in scope["headers"] if pair[0] not in _REPLACED_HEADERS]
        inner = {**scope, "headers": [*given, *_HEADERS], "state": {"exchange": exchange}}
        unread = [body]
        sent = bytearray()
        status = 500

        async def receive() -> Message:
            if not unread:
                await anyio.sleep_forever()  # if the client hangs up, the call is cancelled
            return {"type": "http.request", "body": unread.pop(), "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            sent.extend(message.get("body", b""))

        await self._sessions.handle_request(inner, receive, send)
        return Reply(bytes(sent), status)


def run(served: Served) -> None:
    """Answer messages until stdin ends; Ctrl-C ends the process."""
    # An exception would wait for the thread that reads stdin, and nothing interrupts this thread.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    anyio.run(_run, served)


async def _run(served: Served) -> None:
    server = mcp_server(served)
    async with reloading(served), stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
