"""Hostile requests by the thousand: the server answers 4xx, keeps its memory, and serves others."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.faults import FULL, keep_result
from tests.serve.live import Live, live_server

REQUESTS, IDLE, SLOW, WARM_UP = (100_000, 10_000, 200, 30_000) if FULL else (1_200, 300, 10, 1_200)
SEARCHES = 2000 if FULL else 50
ATTACKERS = 4
SEED = 41
PATHS = ["/search", "/v1/embeddings", "/rerank", "/embed", "/tokenize", "/similarity", "/documents"]
VALUES: list[object] = [
    *(None, True, -1, 0, 10**30, -(10**400), 1e308, 0.1, "", " ", "\x00", "\u202e", "x" * 5000),
    *([], {}, [[]], [[[]]], [None], ["a"] * 3000, {"a": {"b": {"c": []}}}, [10**20], "../../etc"),
    *("year > " * 500, "http://127.0.0.1/", "file:///etc/passwd", "'; DROP TABLE x; --"),
]
FIELDS = [
    *("query", "queries", "k", "offset", "where", "mode", "fusion", "index", "facets", "input"),
    *(
        "model",
        "inputs",
        "documents",
        "texts",
        "top_n",
        "dimensions",
        "encoding_format",
        "group_by",
    ),
]


def _body(draw: random.Random) -> bytes:
    kind = draw.randrange(8)
    if kind == 0:
        return draw.randbytes(draw.randrange(200))
    if kind == 1:
        return draw.choice([b"[", b'{"a":', b'{"query":[']) * draw.choice([10, 1000, 50_000])
    if kind == 2:
        return b'{"query": ' + b"9" * draw.choice([10, 400, 20_000]) + b"}"
    body = {draw.choice(FIELDS): draw.choice(VALUES) for _ in range(draw.randrange(1, 5))}
    raw = json.dumps(body).encode()
    if kind == 3:
        at = draw.randrange(len(raw))
        raw = raw[:at] + draw.randbytes(1) + raw[at + 1 :]
    return raw[: draw.randrange(len(raw))] if kind == 4 else raw


def _request(draw: random.Random) -> bytes:
    """Make the bytes of a request, sound or not."""
    if draw.random() < 0.05:
        return draw.randbytes(draw.randrange(1, 400))
    body = _body(draw)
    method = draw.choice(["POST", "POST", "POST", "GET", "PUT", "DELETE", "OPTIONS", "X" * 30])
    path = draw.choice([*PATHS, *PATHS, "/documents/%00", "/../../etc/passwd", "//", "/\xff", "*"])
    length = len(body) if draw.random() < 0.9 else draw.choice([0, 10**12, -1, len(body) - 1])
    headers = [f"host: {draw.choice(['localhost', 'localhost', 'evil.example', ''])}"]
    headers += [f"content-length: {length}", "connection: close"]
    if draw.random() < 0.1:
        headers.append(f"{draw.choice(['x', 'authorization', 'expect'])}: {'y' * 3000}")
    head = f"{method} {path} HTTP/1.1\r\n" + "\r\n".join(headers) + "\r\n\r\n"
    return head.encode("latin-1") + body


def _send(live: Live, raw: bytes, draw: random.Random) -> str:
    """Send bytes, in one of several rude ways; return the status, or how it ended without one."""
    with live.socket() as client:
        client.settimeout(20)
        with contextlib.suppress(OSError):
            if draw.random() < 0.05:
                client.sendall(raw[: len(raw) // 2])
                return "hung up"
            client.sendall(raw)
            if draw.random() < 0.05:
                client.shutdown(socket.SHUT_WR)
            if draw.random() < 0.03:
                return "hung up"
            answer = client.recv(200)
            if answer.startswith(b"HTTP/1.1 "):
                return answer[9:12].decode()
    return "closed"


def _settle(live: Live) -> None:
    """Wait until the server has closed all other connections."""
    until = time.monotonic() + 60
    while len(list(Path(f"/proc/{live.process.pid}/fd").iterdir())) > 50:
        assert time.monotonic() < until
        time.sleep(0.1)


def _anonymous(live: Live) -> int:
    """Return the server's memory in KiB."""
    lines = Path(f"/proc/{live.process.pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Hangers:
    """Connections that stay open without a whole request; those that are closed come again.

    Most say nothing at all. The others send a byte of a header, or of a body, now and then.
    """

    def __init__(self, live: Live, idle: int, slow: int) -> None:
        self._live, self._wanted = live, {"idle": idle, "header": slow, "body": slow}
        self._open: dict[str, list[socket.socket]] = {kind: [] for kind in self._wanted}
        self.most, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Hangers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        for clients in self._open.values():
            for client in clients:
                client.close()

    def await_all(self) -> None:
        """Wait until nearly all are open at once."""
        while self.most < 0.9 * sum(self._wanted.values()):
            time.sleep(0.1)

    def _run(self) -> None:
        while not self._done.is_set():
            for kind, wanted in self._wanted.items():
                clients = self._open[kind] = list(filter(self._goes_on, self._open[kind]))
                for _ in range(wanted - len(clients)):
                    with contextlib.suppress(OSError):
                        clients.append(self._connect(kind))
            self.most = max(self.most, sum(map(len, self._open.values())))
            self._done.wait(0.5)

    def _connect(self, kind: str) -> socket.socket:
        client = self._live.socket()
        length = b"content-length: 100000\r\n\r\n" if kind == "body" else b""
        if kind != "idle":
            client.sendall(b"POST /search HTTP/1.1\r\nhost: localhost\r\n" + length)
        client.setblocking(False)
        return client

    def _goes_on(self, client: socket.socket) -> bool:
        """Send the next byte of a slow request; return whether the connection is still open."""
        try:
            if client not in self._open["idle"]:
                client.send(b"x")
            if client.recv(1000):
                return True
        except BlockingIOError:
            return True
        except OSError:
            pass
        client.close()
        return False


OTHER = """
import http.client, json, sys, time
client = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
for _ in range(int(sys.argv[2])):
    started = time.perf_counter()
    client.request("POST", "/search", b'{"query": "wheel"}', {"content-type": "application/json"})
    answer = client.getresponse()
    assert answer.status == 200 and json.loads(answer.read())["results"][0]["hits"]
    print(time.perf_counter() - started)
    time.sleep(0.01)
"""


def _p99_ms(live: Live) -> float:
    """Return the p99 of searches by a client in a process of its own."""
    arguments = [sys.executable, "-c", OTHER, str(live.port), str(SEARCHES)]
    done = subprocess.run(arguments, capture_output=True, check=True, timeout=600)
    return float(np.percentile([float(line) for line in done.stdout.split()], 99)) * 1e3


def _together(work: Callable[[int], None]) -> list[threading.Thread]:
    """Start a function in each of several threads."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    return threads


def _sizes(live: Live, attackers: Sequence[threading.Thread]) -> list[int]:
    """Return the server's memory in MiB every half minute, until attackers have ended."""
    sizes = []
    for attacker in attackers:
        while attacker.is_alive():
            sizes.append(round(_anonymous(live) / 1024))
            attacker.join(30)
    return sizes


@pytest.mark.thorough
def test_hostile_requests_harm_nobody(built: Path) -> None:
    arguments = ("--max-connections", IDLE + 2 * SLOW + 1000, "--no-access-log")
    with live_server(built, *arguments) as live:
        counts: Counter[str] = Counter()
        sound = json.dumps({"query": "wheel"}).encode()
        head = f"POST /search HTTP/1.1\r\ncontent-length: {len(sound)}\r\nconnection: close"
        calm = threading.Event()

        def behave(_: int) -> None:
            while not calm.is_set():
                with live.socket() as client:
                    client.sendall(head.encode() + b"\r\nhost: localhost\r\n\r\n" + sound)
                    while client.recv(65536):
                        pass

        def attack(i: int, n: int, seed: int) -> None:
            draw = random.Random(seed + i)
            for _ in range(n // ATTACKERS):
                counts[_send(live, _request(draw), draw)] += 1

        for seed in (
            SEED,
            SEED + 50,
        ):  # connections that come again find less of the memory in one piece
            _settle(live)
            with Hangers(live, IDLE, SLOW) as hangers:
                attackers = _together(partial(attack, n=WARM_UP, seed=seed))
                _p99_ms(live)
                for attacker in attackers:
                    attacker.join()
                hangers.await_all()
                before = _anonymous(live)  # with all connections open, as in every later figure
        neighbours = _together(behave)
        beside_sound = _p99_ms(live)
        calm.set()
        for neighbour in neighbours:
            neighbour.join()
        _settle(live)
        with Hangers(live, IDLE, SLOW) as hangers:
            attackers = _together(partial(attack, n=REQUESTS, seed=SEED + 100))
            beside_hostile = _p99_ms(live)
            sizes = _sizes(live, attackers)
            after = _anonymous(live)
        assert live.ask("GET", "/ready").status == 200
        assert live.search("wheel")
        _settle(live)
        grown = after / before
        assert hangers.most > IDLE // 2, hangers.most
        assert not [status for status in counts if status.startswith("5")], counts
        assert counts["400"] > REQUESTS // 10
        assert grown < 1.05, (before, after)
        assert live.stop() == 0
    keep_result(
        "serving_hostile",
        {
            "requests": REQUESTS + 2 * WARM_UP,
            "hanging_connections": hangers.most,
            "answers": dict(sorted(counts.items())),
            "anonymous_memory_grew_to": round(grown, 4),
            "anonymous_mib_each_half_minute": sizes,
            "p99_ms_beside_sound_clients": round(beside_sound, 1),
            "p99_ms_beside_hostile_clients": round(beside_hostile, 1),
        },
    )
