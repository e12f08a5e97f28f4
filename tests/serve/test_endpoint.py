"""Requests that are refused: by whom, with which status, and what the body says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sbert_search.serve.access import AccessTokens
from sbert_search.serve.endpoint import Call, Endpoint, Operation, Reply, require_admission
from sbert_search.serve.metrics import Metrics
from sbert_search.serve.problems import Problem
from sbert_search.serve.state import Served
from tests.serve.live import READ, WRITE, Live, live_server

BAD = [
    ({"query": 1}, "query"),
    ({"query": ""}, "query"),
    ({"query": "x", "queries": ["y"]}, "query"),
    ({"queries": []}, "queries"),
    ({"queries": ["a", 1]}, "queries[1]"),
    ({"query": "x", "k": 10**30}, "k"),
    ({"query": "x", "k": 0}, "k"),
    ({"query": "x", "k": 1001}, "k"),
    ({"query": "x", "k": 1, "offset": 1000}, "k"),
    ({"query": "x", "k": "1"}, "k"),
    ({"query": "x", "mode": "magic"}, "mode"),
    ({"query": "x", "wher": "year > 1"}, "wher"),
    ({"query": "x", "where": "nope > 3"}, "where"),
    ({"query": "x", "where": "year >"}, "where"),
    ({"query": "x", "where": ["year > ?", []]}, "where"),
    ({"query": "x", "where": ["year > ?"]}, "where"),
    ({"query": "x", "where": {"nope": 3}}, "where"),
    ({"query": "x", "where": {"year": {"$more": 3}}}, "where"),
    ({"query": "x", "where": {"$or": 3}}, "where"),
    ({"query": "x", "where": {}}, "where"),
    ({"query": "x", "fusion": {"depth": -1}}, "fusion.depth"),
    ({"query": "x", "fusion": {"depth": 1001}}, "fusion.depth"),
    ({"query": "x", "diversity": 2}, "diversity"),
    ({"query": "x", "group_size": 2}, "group_size"),
    ({"query": "-only"}, "query"),
    ({"query": "x", "rerank": True}, "rerank"),
    ({"query": "x", "facets": ["nope"]}, "facets"),
    ({"query": "x", "facets": ["year:5:1"]}, "facets"),
    ({"query": "x", "facets": ["year", "year:0:2000"]}, "facets"),
    ({"query": "x", "facets": ["year"], "facet_values": 0}, "facet_values"),
    ({"query": "x", "boost": ["year"]}, "boost"),
    ({"query": "x", "boost": ["year:more:1"]}, "boost"),
    ({"query": "x", "boost": ["year:log:nan"]}, "boost"),
    ({"query": "x", "boost": ["year:recency:1"]}, "boost"),
    ({"query": "x", "boost": ["year:log:1:30"]}, "boost"),
    ({"query": "x", "boost": ["year:recency:1:30"]}, "boost"),
    ({"query": "x", "boost": ["year:linear:1e306"]}, "boost"),
    ({"query": "x", "boost": ["nope:log:1"]}, "boost"),
    ({"boost": ["year:log:1"]}, "boost"),
    ({"query": "x", "sort": "-nope"}, "sort"),
    ({"query": "x", "sort": ["year", "yaer"]}, "sort"),
    ({"query": "x", "sort": "year", "group_by": "yaer"}, "group_by"),
    ({"query": "x", "sort": "year", "diversity": 0.5}, "sort"),
    ({"query": "x", "group_by": "nope"}, "group_by"),
    ({"query": "x", "group_by": "year", "passages": True}, "group_by"),
    ({"query": "x", "fields": ["title", "nope"]}, "fields"),
    ({"query": "\ud800", "mode": "dense"}, ""),
]


@pytest.mark.parametrize(("body", "param"), BAD)
def test_a_wrong_field_is_named(live: Live, built: Path, body: object, param: str) -> None:
    answer = live.ask("POST", "/v1/search", body)
    assert answer.status == 400, answer.raw
    error = answer.json["error"]
    assert (error["param"] or "") == param
    assert error["type"] == "invalid_request"
    assert len(error["message"]) > 10
    assert str(built.parent) not in answer.raw.decode()
    assert "Traceback" not in answer.raw.decode()


def test_a_wrong_mode_lists_the_known_ones(live: Live) -> None:
    answer = live.post("/search", query="river", mode="semantic")
    known = "Invalid enum value 'semantic'; known: auto, dense, hybrid, lexical."
    assert (answer.status, answer.json["error"]["message"]) == (400, known)


def test_a_client_is_told_how_the_server_was_started(live: Live) -> None:
    for path, body in (
        ("/v1/search", {"query": "x", "rerank": True}),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}),
    ):
        message = live.ask("POST", path, body).json["error"]["message"]
        assert message == "The server was started without --rerank, so it has no reranker."


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"query":' * 50_000,
        b'{"query": NaN}',
        b'{"query": "\xff"}',
        b"null",
        b'"x"',
        b'{"query": "x", "k": 1e999}',
        b'{"query": "x"} trailing',
    ],
)
def test_what_is_not_the_right_json_is_refused(live: Live, raw: bytes) -> None:
    answer = live.ask("POST", "/v1/search", raw)
    assert answer.status == 400, answer.raw[:200]
    assert answer.json["error"]["type"] == "invalid_request"


@pytest.mark.thorough
def test_a_body_that_is_too_large_is_refused_unread(built: Path) -> None:
    with live_server(built, "--max-body", 1000) as server:
        answer = server.ask("POST", "/v1/search", b" " * 1001)
        assert answer.status == 413
        assert answer.headers["connection"] == "close"
        with server.socket() as client:  # only announced: the answer comes without the body
            client.sendall(b"POST /search HTTP/1.1\r\nhost: localhost\r\n")
            client.sendall(b"content-length: 1000000000\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 413")
        with server.socket() as client:  # in chunks, of an unknown number
            client.sendall(b"POST /search HTTP/1.1\r\nhost: localhost\r\n")
            client.sendall(b"transfer-encoding: chunked\r\n\r\n")
            client.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 413")
        assert server.search("wheel")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/x-www-form-urlencoded"}, 200),
        ({"content-encoding": "gzip"}, 415),
        ({"host": "evil.example"}, 403),
        ({"host": "localhost:1"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_headers(live: Live, headers: Mapping[str, str], status: int) -> None:
    body = json.dumps({"query": "wheel"}).encode()
    answer = live.ask("POST", "/v1/search", body, headers)
    assert answer.status == status
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("host", ["faq.example", "FAQ.example", "localhost:1", "a.b:8443"])
def test_a_proxy_may_pass_on_the_host_of_an_admitted_page(host: str) -> None:
    require_admission(_local_server(), "open", {b"host": host.encode()})


@pytest.mark.parametrize("host", ["evil.example", "faq.example:8080", "a.b", "x.faq.example", ""])
def test_another_host_is_refused_with_the_remedy(host: str) -> None:
    """The port of a page counts: its name may have been made an address of this machine."""
    with pytest.raises(Problem, match=r"start it with --cors-origin .* or with --token-file\.$"):
        require_admission(_local_server(), "open", {b"host": host.encode()})


def _local_server() -> Served:
    origins = ["https://faq.example", "http://a.b:8443"]
    facts = {"hosts": ("localhost",), "origins": origins, "tokens": AccessTokens({})}
    return cast(Served, SimpleNamespace(**facts, writable=False))


def test_a_page_of_the_server_itself_is_admitted(live: Live) -> None:
    origin = {"origin": live.url}
    assert live.ask("POST", "/search", {"query": "wheel"}, origin).status == 200


def test_a_malformed_origin_is_refused(live: Live) -> None:
    assert live.ask("POST", "/search", {"query": "wheel"}, {"origin": "http://["}).status == 403


def test_a_parameter_of_the_address_that_occurs_twice_is_refused(live: Live) -> None:
    """Both filters, if one of them is not to be ignored."""
    answer = live.ask("GET", "/documents/mill/similar?where=year%3E2000&where=year%3C2000")
    assert (answer.status, answer.json["error"]["param"]) == (400, "where")


def test_an_unknown_parameter_of_the_address_is_named(live: Live) -> None:
    answer = live.ask("GET", "/documents/mill?indx=x")
    assert (answer.status, answer.json["error"]["param"]) == (400, "indx")
    assert live.ask("GET", "/documents/mill?index=x").status == 404


@pytest.mark.thorough
def test_tokens_are_needed_for_all_but_health(
    built: Path, token_file: Path, tmp_path: Path
) -> None:
    arguments = (built, "--token-file", token_file, "--writable", "--cors-origin", "https://a.b")
    with live_server(*arguments) as server:
        for path in ("/health", "/ready", "/v1/health"):
            assert server.ask("GET", path).status == 200
        body = {"query": "wheel"}
        for authorization in ("", READ, f"Basic {READ}", f"Bearer {READ}x", "Bearer ", "Bearer"):
            answer = server.ask("POST", "/search", body, {"authorization": authorization})
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/metrics", "/info", "/indexes", "/documents/mill", "/openapi.json"):
            assert server.ask("GET", path).status == 401
        for token in (READ, WRITE):
            sent = {"authorization": f"Bearer {token}", "origin": "https://a.b"}
            answer = server.ask("POST", "/search", body, sent)
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == "https://a.b"
        asks = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        for origin, status in (("https://a.b", 200), ("https://c.d", 400)):
            answer = server.ask("OPTIONS", "/v1/search", None, {"origin": origin, **asks})
            assert answer.status == status
            allowed = answer.headers.get("access-control-allow-origin")
            assert allowed == (origin if status == 200 else None)
        new = {"documents": [{"id": "x", "text": "y"}]}
        refused = server.ask("POST", "/documents", new, {"authorization": f"Bearer {READ}"})
        assert refused.status == 403
        huge = server.ask("POST", "/search", b" " * (9 << 20))
        assert huge.status == 401  # before the body is looked at


def test_nothing_is_written_without_a_token(live: Live) -> None:
    new = {"documents": [{"id": "x", "text": "y"}]}
    for method, path, body in (
        ("POST", "/documents", new),
        ("PUT", "/documents", new),
        ("POST", "/documents/delete", {"ids": ["mill"]}),
    ):
        answer = live.ask(method, path, body)
        assert answer.status == 403
        assert "only reads; start it with --writable" in answer.json["error"]["message"]
    assert live.ask("GET", "/documents/mill").status == 200


@pytest.mark.parametrize(
    ("status", "kind"), [(200, ""), (406, "invalid_request"), (404, "not_found")]
)
def test_an_answer_counts_by_its_status(status: int, kind: str) -> None:
    """The SDK of the Model Context Protocol answers with statuses of its own."""

    async def answer(served: Served, call: Call[None]) -> Reply:
        return Reply(b"{}", status)

    async def receive() -> dict[str, object]:
        return await asyncio.Future()  # the client waits for the answer

    async def send(message: object) -> None:
        sent.append(message)

    sent: list[object] = []
    metrics = Metrics()
    facts = {"metrics": metrics, "active": 0, "hosts": (), "origins": (), "draining": False}
    served = cast(Served, SimpleNamespace(**facts, tokens=AccessTokens({})))
    operation = Operation(method="GET", path="/x", answer=answer, right="open")
    scope = {"type": "http", "headers": [], "query_string": b"", "path": "/x", "method": "GET"}
    asyncio.run(Endpoint(operation, served, None)(scope, receive, send))
    assert metrics.successes.total() == (status < 400)
    failed = {} if status < 400 else {(("err", kind),): (1,)}
    assert metrics.failures.values() == failed
    assert sent
