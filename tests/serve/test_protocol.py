"""Connections of slow and hostile clients."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from sbert_search.serve import server as protocol
from sbert_search.serve.access import ServerLimits
from tests.serve.in_thread import app_in_thread, served_in_thread

LIMITS = ServerLimits(header_s=0.3, body_s=0.3, keep_alive_s=60, connections=20)
HEAD = b"POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n"
OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
LENGTH_0 = [(b"content-length", b"0")]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served_in_thread(LIMITS) as port:
        yield port


def statuses_of(answers: bytes) -> list[int]:
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def all_of(client: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    parts = []
    while True:
        try:
            part = client.recv(65_536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def test_headers_that_do_not_come_in_time_end_the_connection(port: int) -> None:
    with connect(port) as silent, connect(port) as slow:
        slow.sendall(b"GET /health HTT")
        assert all_of(slow).startswith(b"HTTP/1.1 408")
        assert all_of(silent) == b""


def test_a_body_that_does_not_come_in_time_ends_the_connection(port: int) -> None:
    with connect(port) as client:
        client.sendall(HEAD + b"\r\n{")
        answer = all_of(client)
        assert answer.startswith(b"HTTP/1.1 408")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        assert b'"code":408' in body


def test_the_second_request_of_a_connection_has_deadlines_too(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        first = b""
        while not first.endswith(b'{"status":"ok"}'):
            part = client.recv(65_536)
            assert part
            first += part
        assert first.startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /hea")
        assert all_of(client).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "headers",
    [
        b"x: " + b"y" * (protocol.HEADER_BYTES + 1) + b"\r\n",
        b"x: y\r\n" * (protocol.MAX_HEADERS + 1),
    ],
)
def test_headers_that_are_too_large_are_refused(port: int, headers: bytes) -> None:
    with connect(port) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n")
        assert all_of(client).startswith(b"HTTP/1.1 400")


def test_a_request_line_without_end_is_refused(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"GET /" + b"a" * (protocol.HEADER_BYTES + 10))
        assert all_of(client).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(port: int, raw: bytes) -> None:
    with connect(port) as client:
        client.sendall(raw)
        assert all_of(client).startswith(b"HTTP/1.1 4")


def test_connections_above_the_limit_are_closed_and_places_come_back(port: int) -> None:
    clients = [connect(port) for _ in range(LIMITS.connections)]
    with connect(port) as extra:
        assert all_of(extra) == b""
    for client in clients:
        client.close()
    with connect(port) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert all_of(client).startswith(b"HTTP/1.1 200")


def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    with connect(port) as client:
        one = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        last = b"GET /nope HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        client.sendall(one + one + last)
        assert statuses_of(all_of(client)) == [200, 200, 404]


@pytest.mark.parametrize(
    ("length", "body"),
    [
        (b"content-length: 16", b'{"input": "cat"}'),
        (b"transfer-encoding: chunked", b'9\r\n{"input":\r\n7\r\n "cat"}\r\n0\r\n\r\n'),
    ],
)
def test_a_request_that_offers_http_2_is_answered_in_http_1(
    port: int, length: bytes, body: bytes
) -> None:
    """As from the HTTP client of Java."""
    head = b"POST /embeddings HTTP/1.1\r\nhost: localhost\r\n" + length + b"\r\n" + OFFER + b"\r\n"
    last = b"GET /nope HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    whole = head + body + head + body + last
    for pause_at in (0, 40, len(head), len(head) + 5):
        with connect(port) as client:
            client.sendall(whole[:pause_at])
            time.sleep(0.05)
            client.sendall(whole[pause_at:])
            answers = all_of(client)
        assert statuses_of(answers) == [200, 200, 404]
        assert answers.count(b'"embedding":[') == 2


def test_a_request_without_a_body_that_offers_http_2_is_answered_in_http_1(port: int) -> None:
    one = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + OFFER + b"\r\n"
    with connect(port) as client:
        client.sendall(2000 * one + one.replace(b"Upgrade,", b"Upgrade, close,"))
        assert statuses_of(all_of(client)) == 2001 * [200]


@pytest.mark.parametrize("late", [b"GET /hea", HEAD + b"\r\n{"])
def test_an_incomplete_request_behind_another_one_is_told_so(port: int, late: bytes) -> None:
    """Both come in one packet."""
    with connect(port) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" + late)
        assert statuses_of(all_of(client)) == [200, 408]


@pytest.mark.parametrize("late", [b"GET /hea", HEAD + b"\r\n{"])
def test_a_late_request_does_not_take_the_answer_of_an_earlier_one(late: bytes) -> None:
    """The earlier request is computed for longer than the deadline of the one behind it."""
    may_answer, begun = threading.Event(), threading.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        if scope["method"] == "POST":  # the late one, whose body stays incomplete
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        begun.set()
        while not may_answer.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": LENGTH_0})
        await send({"type": "http.response.body"})

    with app_in_thread(answer, LIMITS) as port, connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" + late)
        assert begun.wait(30)
        time.sleep(3 * LIMITS.header_s)  # the deadline ends more than once
        may_answer.set()
        assert statuses_of(all_of(client)) == [200, 408]


def test_a_request_that_was_answered_before_its_body_came_is_not_answered_twice() -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        await send({"type": "http.response.start", "status": 401, "headers": LENGTH_0})
        await send({"type": "http.response.body"})

    with app_in_thread(refuse, LIMITS) as port, connect(port) as client:
        client.sendall(HEAD + b"\r\n{")
        assert statuses_of(all_of(client)) == [401]
