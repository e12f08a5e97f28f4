"""The SDK's own client of the Model Context Protocol, over HTTP and over stdin and stdout."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from traceback import format_exception
from typing import Any, TypeVar, cast

import httpx2
import jsonschema
import msgspec
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from sbert_search.search.engine import SearchEngine
from sbert_search.serve.access import AccessTokens
from sbert_search.serve.endpoint import Call
from sbert_search.serve.mcp import McpRoute
from sbert_search.serve.mcp_tools import TOOLS, AnyTool, McpMessage
from sbert_search.serve.queue import Work
from sbert_search.serve.state import ServeSettings, open_served
from tests.serve.live import READ, Answer, Live, live_server

T = TypeVar("T")
pytest_plugins = ("tests.serve.conftest",)
MODES = ["auto", "legacy"]  # the protocol of 2026, and the older ones with a handshake
HANDSHAKE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "a test", "version": "1"},
}
CALL = {"name": "search", "arguments": {"query": "wheel"}}


@pytest.fixture(scope="module")
def server(built: Path) -> Iterator[Live]:
    with live_server(built, "--mcp") as live:
        yield live


def ask(target: Any, question: Callable[[Client], Awaitable[T]], mode: Any = "auto") -> T:
    """Connect a client, and return its answer to a question."""

    async def connected() -> T:
        async with Client(target, mode=mode) as client:
            return await question(client)

    return asyncio.run(asyncio.wait_for(connected(), 300))


def with_token(live: Live, token: str) -> Any:
    headers = {"authorization": f"Bearer {token}"}
    return streamable_http_client(
        f"{live.url}/mcp", http_client=httpx2.AsyncClient(headers=headers)
    )


def message(method: str, params: object = None, **more: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "method": method, "id": 1, "params": params or {}, **more}


async def check_tools(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert sorted(tools) == ["document", "search", "similar"]
    search = tools["search"]
    assert search.input_schema["required"] == ["query"]
    assert search.input_schema["properties"]["k"]["maximum"] == 1000
    assert search.annotations is not None
    assert search.annotations.read_only_hint
    assert "my.index: 3 documents. Columns: year (int64)." in (search.description or "")


async def check_answers(client: Client, expected: list[str]) -> None:
    """Call every tool; the client compares each answer with the schema of its tool."""
    arguments = {"query": "water wheel", "k": 2, "mode": "hybrid", "where": "year < 2015"}
    found = await client.call_tool("search", arguments)
    assert [hit["id"] for hit in found.structured_content["hits"]] == expected
    assert json.loads(found.content[0].text) == found.structured_content
    near = await client.call_tool("similar", {"id": "mill", "k": 1})
    assert near.structured_content["hits"][0]["id"] != "mill"
    document = await client.call_tool("document", {"id": "mill"})
    assert document.structured_content["metadata"] == {"year": 1999}


async def check_errors(client: Client) -> None:
    for arguments, field in (
        ({"query": "x", "k": 1001}, "k"),
        ({"query": "x", "where": "nope = 1"}, "where"),
        ({}, "query"),
    ):
        refused = await client.call_tool("search", arguments)
        assert refused.is_error
        assert refused.content[0].text.startswith(f"{field}: ")
        assert refused.structured_content is None  # it would not fit the schema of the tool
    with pytest.raises(MCPError, match="There is no tool 'nope'; the tools are: search, "):
        await client.call_tool("nope", {})


CALLS: list[tuple[str, dict[str, object]]] = [
    ("search", {"query": "water wheel"}),
    ("search", {"query": "nothing of this kind", "mode": "lexical"}),
    ("search", {"query": "wheel", "k": 1001}),
    ("search", {"query": "wheel", "where": "nope = 1"}),
    ("search", {"query": "wheel", "index": "other"}),
    ("search", {"query": "-wheel"}),
    ("search", {"query": "wheel", "syntax": "plain"}),
    ("search", {}),
    ("similar", {"id": "mill", "k": 1}),
    ("similar", {"id": "nobody"}),
    ("similar", {"id": 5}),
    ("document", {"id": "mill"}),
    ("document", {"id": "nobody"}),
    ("document", {}),
]


def test_every_answer_fits_the_schema_of_its_tool(server: Live) -> None:
    """The official client in TypeScript compares also an error, and fails if it does not fit."""
    listed = server.ask("POST", "/mcp", message("tools/list")).json["result"]["tools"]
    schemas = {tool["name"]: tool["outputSchema"] for tool in listed}
    refused = 0
    for name, arguments in CALLS:
        called = message("tools/call", {"name": name, "arguments": arguments})
        result = server.ask("POST", "/mcp", called).json["result"]
        refused += result.get("isError", False)
        assert result["content"][0]["text"]
        if not result.get("isError") or "structuredContent" in result:
            jsonschema.validate(
                result["structuredContent"], schemas[name], jsonschema.Draft202012Validator
            )
    assert refused == 10


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_a_client_lists_and_calls_the_tools(
    server: Live, built: Path, tmp_path: Path, mode: str, transport: str
) -> None:
    hits = SearchEngine(built).search("water wheel", k=2, mode="hybrid", where="year < 2015")
    target: Any = f"{server.url}/mcp"
    if transport == "stdio":
        arguments = ["-m", "sbert_search", "mcp", str(built)]
        target = StdioServerParameters(command=sys.executable, args=arguments, cwd=tmp_path)

    async def check(client: Client) -> None:
        assert client.server_info.name == "sbert-search"
        await check_tools(client)
        await check_answers(client, [hit.doc_id for hit in hits])
        await check_errors(client)

    ask(target, check, mode)


def test_the_command_has_defaults_of_searches(built: Path) -> None:
    arguments = ["-m", "sbert_search", "mcp", str(built), "--mode", "lexical", "--fuzzy", "1"]

    async def check(client: Client) -> None:
        for options, total in ({}, 1), ({"mode": "dense"}, 3):
            found = await client.call_tool("search", {"query": "watr", **options})
            assert found.structured_content["total"] == total

    ask(StdioServerParameters(command=sys.executable, args=arguments), check)


def test_the_command_ends_when_stdin_does(built: Path) -> None:
    started = message("initialize", HANDSHAKE)
    command = [sys.executable, "-m", "sbert_search", "mcp", str(built)]
    done = subprocess.run(
        command, input=json.dumps(started) + "\n", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    [answer] = map(json.loads, done.stdout.splitlines())
    assert answer["result"]["serverInfo"]["name"] == "sbert-search"


def test_ctrl_c_ends_the_command_while_it_reads_stdin(built: Path) -> None:
    command = [sys.executable, "-m", "sbert_search", "mcp", str(built)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(message("initialize", HANDSHAKE)).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 130
        finally:
            process.kill()
        assert b"Traceback" not in process.stderr.read()


# The SDK's client does not close its connection if the first message is refused.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_without_the_token_is_refused(built: Path, token_file: Path) -> None:
    with live_server(built, "--mcp", "--token-file", token_file) as live:

        async def count(client: Client) -> int:
            return len((await client.list_tools()).tools)

        assert ask(with_token(live, READ), count) == 3
        for mode in MODES:
            with pytest.raises(ExceptionGroup) as refusal:
                ask(with_token(live, "wrong" * 5), count, mode)
            assert "No token, or a wrong one" in "".join(format_exception(refusal.value))
        del refusal
        gc.collect()  # warnings about the connections come now, not in another test
        for headers in ({}, {"authorization": f"Bearer {READ}x"}):
            refused = live.ask("POST", "/mcp", message("tools/list"), headers)
            assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert {entry["route"] for entry in live.log} == {"/mcp"}


def test_messages_are_logged_counted_and_limited_as_other_requests(built: Path) -> None:
    with live_server(built, "--mcp", "--max-body", 1000) as live:
        answer = live.ask("POST", "/mcp", message("tools/call", CALL))
        assert answer.json["result"]["structuredContent"]["hits"]
        assert answer.headers["x-compute-tokens"] == "1"
        lines = live.ask("GET", "/metrics").raw.decode().splitlines()
        assert 'te_request_success{method="/mcp"} 1' in lines
        refused = live.ask("POST", "/mcp", message("ping", {"_meta": {"x": "y" * 1000}}))
        assert (refused.status, refused.json["jsonrpc"]) == (413, "2.0")
        web = {"origin": "https://evil.example"}
        assert live.ask("POST", "/mcp", message("ping"), web).status == 403
        assert live.stop() == 0
    assert live.log[0]["route"] == "/mcp"
    assert live.log[0]["tokens"] == 1


def test_overload_is_answered_by_429(models: Path) -> None:
    """The queue is too small for a document beside those that wait."""
    with live_server(models / "tiny.index", "--mcp", "--max-queue", 20, cwd=models) as live:

        async def ask_together() -> list[Answer]:
            query = {"name": "search", "arguments": {"query": "the cat sat on the mat " * 3}}
            asked = [
                asyncio.to_thread(live.ask, "POST", "/mcp", message("tools/call", query))
                for _ in range(40)
            ]
            return list(await asyncio.gather(*asked))

        answers = asyncio.run(ask_together())
        assert {answer.status for answer in answers} == {200, 429}
        for answer in answers:
            if answer.status == 429:
                assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"jsonrpc": "2.0"}', 400),
        (b'{"jsonrpc": "1.0", "method": "ping", "id": 1}', 400),
        (b'{"jsonrpc": "2.0", "method": "ping", "id": [1]}', 400),
        (b'{"jsonrpc": "2.0", "method": "ping", "id": 1, "params": [1]}', 400),
        (b'{"jsonrpc": "2.0", "method": "ping", "id": 1, "params": {"a": "\xff"}}', 400),
        (b'{"jsonrpc":"2.0","method":"ping","id":1,"params":{"a":' + b"[" * 10_000, 400),
        (b'{"jsonrpc": "2.0", "method": "notifications/initialized"}', 202),
        (b'{"jsonrpc": "2.0", "method": "ping", "id": 1}', 200),
    ],
)
def test_what_is_no_message_is_refused(server: Live, body: bytes, status: int) -> None:
    answer = server.ask("POST", "/mcp", body)
    assert answer.status == status, answer.raw
    assert "Traceback" not in answer.raw.decode()


def test_there_are_no_streams_and_nothing_is_kept(server: Live) -> None:
    """Streams that stay open and sessions that are never ended would fill the server."""
    for method in ("GET", "DELETE"):
        refused = server.ask(method, "/mcp", headers={"accept": "text/event-stream"})
        assert (refused.status, refused.headers["allow"]) == (405, "POST")
    accepts = {"accept": "application/json, text/event-stream"}
    for version in ("2025-06-18", "2026-07-28"):
        listen = message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        sent = accepts | {"mcp-protocol-version": version, "mcp-method": "subscriptions/listen"}
        answer = server.ask("POST", "/mcp", listen, sent, timeout=30)
        assert answer.status in (200, 400, 404, 406)
        assert "error" in answer.json if answer.raw else answer.status == 406

    def open_things() -> tuple[int, int]:
        folder = Path(f"/proc/{server.process.pid}")
        status = (folder / "status").read_text()
        kilobytes = next(int(line.split()[1]) for line in status.splitlines() if "RssAnon" in line)
        return len(list((folder / "fd").iterdir())), kilobytes

    def shake_hands(n: int) -> tuple[int, int]:
        for _ in range(n):
            answer = server.ask("POST", "/mcp", message("initialize", HANDSHAKE))
            assert "mcp-session-id" not in answer.headers
        return open_things()

    files, kilobytes = shake_hands(300)
    files_later, kilobytes_later = shake_hands(300)
    assert files_later <= files + 2
    assert kilobytes_later < 1.05 * kilobytes


def test_a_call_is_cancelled_when_the_client_hangs_up(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route is cancelled then; the tool runs in another task."""
    settings = ServeSettings(indexes={"my.index": built}, tokens=AccessTokens({}), mcp=True)
    served = open_served(settings)

    async def hang_up() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def wait(*_: object) -> msgspec.Struct:
            begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                ended.set()
            raise AssertionError

        monkeypatch.setitem(
            cast("dict[str, AnyTool]", TOOLS), "search", replace(TOOLS["search"], answer=wait)
        )
        route = McpRoute(served)
        params = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in CALL.items()}
        asked = McpMessage(jsonrpc="2.0", method="tools/call", id=1, params=params)
        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": []}
        async with route.running():
            answer = asyncio.ensure_future(
                route.operation.answer(served, Call(asked, {}, {}, Work(), scope))
            )
            await asyncio.wait_for(begun.wait(), 30)
            answer.cancel()
            await asyncio.wait_for(ended.wait(), 30)

    asyncio.run(hang_up())


def test_a_server_without_the_option_has_no_tools(live: Live) -> None:
    assert live.ask("POST", "/mcp", message("tools/list")).status == 404
    assert "/mcp" not in live.ask("GET", "/openapi.json").json["paths"]
