"""The Model Context Protocol over stdin and stdout, for programs that start their tools."""

from __future__ import annotations

import os
import signal

import anyio
from mcp.server.stdio import stdio_server

from sbert_search.serving.mcp.protocol import mcp_server
from sbert_search.serving.state import Served, reloading


def run(served: Served) -> None:
    """Answer messages until stdin ends; Ctrl-C ends the process."""
    # An exception would wait for the thread that reads stdin, and nothing interrupts this thread.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    anyio.run(_run, served)


async def _run(served: Served) -> None:
    server = mcp_server(served)
    async with reloading(served), stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
