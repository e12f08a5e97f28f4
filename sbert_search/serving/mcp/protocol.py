"""Offer the tools of `mcp.tools` over the Model Context Protocol, with the protocol's SDK."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from sbert_search.serving.mcp.tools import TOOLS, described_indexes
from sbert_search.serving.models.work import Work
from sbert_search.serving.problems import Problem, problem_of
from sbert_search.serving.state import Served
from sbert_search.version import __version__

_INSTRUCTIONS = (
    "Search the documents of the user's indexes with the tool `search`. Hits have the best passage "
    "of a document; `document` reads a whole document, and `similar` finds others like it."
)


@dataclass(slots=True)
class Exchange:
    """One message of a client, over HTTP or another channel.

    Attributes:
        work: The cost of the answer so far.
        failure: An error that fails the HTTP request as a whole; None: there is none.
    """

    work: Work = field(default_factory=Work)
    failure: Exception | None = None


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
    """Return a problem as a result that a language model can read and act on.

    It has no structured content, which would have to fit the tool's schema of answers.
    """
    shown = f"{problem.param}: {problem.message}" if problem.param else problem.message
    return types.CallToolResult(
        content=[types.TextContent(text=shown)],
        is_error=True,
    )


def _exchange_of(context: ServerRequestContext) -> Exchange:
    """Return the exchange of a message over HTTP, or a new one for a message of another channel."""
    exchange = None if context.request is None else context.request.state.exchange
    return exchange if isinstance(exchange, Exchange) else Exchange()
