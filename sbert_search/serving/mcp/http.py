"""The route ``/mcp``: the Model Context Protocol over HTTP, one request for each message.

There are no sessions and no streams: each message is an HTTP request, whose answer is JSON. Nothing
is kept between requests, and access, limits, log and metrics are those of other routes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Scope

from sbert_search.serving.endpoint import JSON, Call, Operation, Reply
from sbert_search.serving.mcp.protocol import Exchange, mcp_server
from sbert_search.serving.schemas.mcp import McpAnswer, McpMessage
from sbert_search.serving.state import Served

# Headers of the client that are replaced. The SDK refuses other media types than JSON in the first
# two. The length changes, since the message is encoded again.
_REPLACED_HEADERS = (b"accept", b"content-type", b"content-length")
_HEADERS = [(b"accept", JSON.encode()), (b"content-type", JSON.encode())]


class McpRoute:
    """The route of a server.

    Args:
        served: What the server serves.

    Attributes:
        operation: The operation; it answers only while the context `running` is open.
    """

    def __init__(self, served: Served) -> None:
        self._sessions = StreamableHTTPSessionManager(
            mcp_server(served),
            json_response=True,
            stateless=True,
            max_request_body_size=served.limits.body_bytes,
        )
        self.operation = Operation(
            method="POST",
            path="/mcp",
            summary="Answer a message of the Model Context Protocol.",
            answer=self._answer,
            request=McpMessage,
            response=McpAnswer,
            style="mcp",
            problems=(404,),
            versioned=False,
            may_be_empty=True,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer messages while this context is open."""
        async with self._sessions.run():
            yield

    async def _answer(self, served: Served, call: Call[McpMessage]) -> Reply:
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
